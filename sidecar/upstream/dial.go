package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"go.uber.org/zap"
)

// baseOptions are the options of every client.
func (u *Upstream) baseOptions() ([]kgo.Opt, error) {
	cfg, log := u.cfg, u.log
	dial, err := dialler(cfg, &u.dials)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.ClientID(cfg.ClientID),
		kgo.SoftwareNameAndVersion("sidestream", "dev"),
		kgo.Dialer(u.verified(dial)),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(clientLog{log.Named("kafka")}),
	}
	mechanism, err := login(cfg.SASL)
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}

type dialFunc func(ctx context.Context, network, host string) (net.Conn, error)

func dialler(cfg Config, noted *dials) (dialFunc, error) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: cfg.DialTimeout}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		abrupt(c)
		return watched(c), nil
	}
	if cfg.TLS.Enabled {
		tc, err := cfg.TLS.config()
		if err != nil {
			return nil, err
		}
		dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
			defer cancel()
			c, err := (&tls.Dialer{Config: tc}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			abrupt(c.(*tls.Conn).NetConn())
			return c, nil
		}
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == noBroker {
			return nil, &net.OpError{Op: "dial", Net: network, Err: errNoBroker}
		}
		c, err := dial(ctx, network, addr)
		noted.note(addr, err)
		return c, err
	}, nil
}

// abrupt has the kernel drop what it has not sent when the connection is closed,
// also by the end of the process. It would go on to send it for minutes: a message
// could reach its broker long after somebody looked whether it had, and saw that
// it had not.
func abrupt(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // without it only that is lost
	}
}

func (c TLSConfig) config() (*tls.Config, error) {
	tc := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.Insecure}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.ca_file: %w", err)
		}
		tc.RootCAs = x509.NewCertPool()
		if !tc.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka.tls.ca_file: %s holds no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.cert_file, key_file: %w", err)
		}
		tc.Certificates = []tls.Certificate{cert}
	}
	return tc, nil
}

// login is nil when the brokers ask for none.
func login(c SASLConfig) (sasl.Mechanism, error) {
	password, err := c.password()
	if err != nil {
		return nil, fmt.Errorf("kafka.%w", err)
	}
	switch c.Mechanism {
	case "plain":
		return plain.Auth{User: c.User, Pass: password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: c.User, Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: c.User, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, nil
}

// clientLog brings the Kafka client's log into ours. Its warnings are mostly
// of brokers that come and go, which is reported where it matters.
type clientLog struct{ log *zap.Logger }

func (l clientLog) Level() kgo.LogLevel {
	if l.log.Core().Enabled(zap.DebugLevel) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelError
}

func (l clientLog) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	log := l.log.Sugar()
	if level == kgo.LogLevelError {
		log.Warnw(msg, keyvals...)
		return
	}
	log.Debugw(msg, keyvals...)
}
