package upstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"sidestream/sdk/api"
)

// selfSigned is a certificate for 127.0.0.1 and its PEM file.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, path
}

func TestTLSAndLogin(t *testing.T) {
	cert, ca := selfSigned(t)
	c := newCluster(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}}), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "app", "secret"))
	cfg := DefaultConfig()
	cfg.Bootstrap = c.ListenAddrs()
	cfg.TLS = TLSConfig{Enabled: true, CAFile: ca}
	cfg.SASL = SASLConfig{Mechanism: "scram-sha-256", User: "app", Password: "secret"}
	if _, err := newUpstream(t, cfg, nil).Topic(context.Background(), "t"); err != nil {
		t.Errorf("with TLS and the password: %v", err)
	}
	cfg.SASL.Password = "wrong"
	if _, err := newUpstream(t, cfg, nil).Topic(context.Background(), "t"); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("with a wrong password: %v", err)
	}
	cfg.TLS.CAFile = ""
	if _, err := newUpstream(t, cfg, nil).Topic(context.Background(), "t"); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("with an unknown authority: %v", err)
	}
}
