package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sidestream/agent"
	"sidestream/discovery"
	"sidestream/ops/devserver"
	"sidestream/sidecar"
)

type devOptions struct {
	dataDir                           string
	sidecars                          int
	sidecarPort, agentPort, kafkaPort int
	freePorts                         bool
	log                               logSettings
}

// sidecarPortStep lies between the ports of two sidecars, so that the agent's
// 4101 stays free.
const sidecarPortStep = 10

func newDev() *cobra.Command {
	o := devOptions{log: logSettings{Format: "auto"}}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, for development",
		Long: `Run one agent with its broker and one or more sidecars in this process, with an
embedded coordination store in place of Consul. Topics are created when they
are first used. Everything is kept in the data folder: a restart finds topics,
messages and positions again. It reads neither a configuration file nor settings in
the environment: what needs them is tried with an agent or a sidecar apart.

Ports, all on 127.0.0.1: the broker 9092, the agent 4101, the first sidecar
4100 and each further one ten more (4110, 4120, …). With --free-ports the system
chooses. The addresses are in dev.json in the data folder as long as the server
serves; after a kill -9 the file stays until the next start, so a program that
reads it checks that the process of its "pid" lives.`,
		Example: `  sidestream dev
  sidestream dev --sidecars 2 --data-dir ./sidestream-data
  sidestream dev --free-ports --data-dir "$(mktemp -d)"`,
		Args: usage(noArgs),
	}
	f := cmd.Flags()
	f.StringVar(&o.dataDir, "data-dir", "", "data folder (default $XDG_DATA_HOME/sidestream/dev, which is ~/.local/share/sidestream/dev)")
	f.IntVar(&o.sidecars, "sidecars", 1, "number of sidecars, 1 to 16")
	f.IntVar(&o.sidecarPort, "sidecar-port", 4100, "port of the first sidecar")
	f.IntVar(&o.agentPort, "agent-port", 4101, "port of the agent's HTTP")
	f.IntVar(&o.kafkaPort, "broker-port", 9092, "port of the broker")
	f.BoolVar(&o.freePorts, "free-ports", false, "take free ports instead, see dev.json")
	f.StringVar(&o.log.Level, "log-level", "warn", "least severity that is logged: debug, info, warn or error")
	f.StringVar(&o.log.Format, "log-format", "auto", "console, json, or auto: console on a terminal")
	valuesOf(cmd, "log-level", logLevels...)
	valuesOf(cmd, "log-format", logFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.sidecars < 1 || o.sidecars > 16 {
			return usageError{fmt.Errorf("--sidecars: got %d: use 1 to 16", o.sidecars)}
		}
		if o.dataDir == "" {
			dir, err := defaultDataDir()
			if err != nil {
				return err
			}
			o.dataDir = dir
		}
		if names := ignoredVariables(os.Environ()); len(names) > 0 {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "dev does not read %s: it takes neither a file nor the environment, only its flags (an agent and a sidecar apart take settings)\n", strings.Join(names, ", "))
		}
		log, _, err := newLogger(o.log)
		if err != nil {
			return err
		}
		defer func() { _ = log.Sync() }() // standard error may not be able to
		return runDev(cmd.Context(), o, log, cmd.OutOrStdout())
	}
	return cmd
}

// ignoredVariables are those that set something for an agent or a sidecar, and
// nothing here.
func ignoredVariables(environ []string) (names []string) {
	known := knownVariables()
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if !slices.Contains(commandVariables, name) && slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// defaultDataDir follows the XDG base directories, which programs on Linux
// keep their data in.
func defaultDataDir() (string, error) {
	if base := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "sidestream", "dev"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usageError{fmt.Errorf("no home folder is known for the data: name one with --data-dir: %w", err)}
	}
	return filepath.Join(home, ".local", "share", "sidestream", "dev"), nil
}

// runDev brings the parts up one after the other, serves until ctx ends or a
// part fails, and takes them down in reverse: a sidecar still needs the agent
// and the store to give its partitions back.
func runDev(ctx context.Context, o devOptions, log *zap.Logger, out io.Writer) (err error) {
	if err := os.MkdirAll(o.dataDir, 0o755); err != nil {
		return err
	}
	unlock, err := lockDir(o.dataDir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := devserver.Remove(o.dataDir); err != nil { // of a life that crashed
		return err
	}
	store, err := discovery.NewMemory(discovery.MemoryOptions{
		SnapshotPath: filepath.Join(o.dataDir, "discovery.json"),
		Logger:       log.Named("store"),
	})
	if err != nil {
		return err
	}
	parts := newParts(ctx)
	defer func() { err = errors.Join(err, parts.stop(), store.Close()) }()

	info := devserver.Info{PID: os.Getpid()}
	a, err := agent.New(o.agentConfig(), store, log.Named("agent"))
	if err != nil {
		return err
	}
	if !parts.start("agent", a) {
		return taken(parts.wait())
	}
	info.Broker, info.Agent = a.BrokerAddr(), "http://"+a.HTTPAddr()
	for i := range o.sidecars {
		name := fmt.Sprintf("sidecar-%d", i+1)
		s, err := sidecar.New(o.sidecarConfig(i), store, log.Named(name))
		if err != nil {
			return err
		}
		if !parts.start(name, s) {
			return taken(parts.wait())
		}
		info.Sidecars = append(info.Sidecars, "http://"+s.Addr())
	}
	// A full disk is a reason to serve, so that records can be deleted: whoever
	// cannot be told of the addresses has chosen them, or reads the banner.
	if err := devserver.Write(o.dataDir, info); err != nil {
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
		log.Warn("the addresses could not be written down", zap.Error(err))
	}
	defer func() { err = errors.Join(err, devserver.Remove(o.dataDir)) }()
	if err := tell(out, banner(o.dataDir, info)); err != nil {
		return err
	}
	if err := parts.wait(); err != nil {
		return err
	}
	return tell(out, "Stopping.\n")
}

// tell writes for people. That what they read with has no room, such as a file
// on the same full disk, is no failure of the server.
func tell(out io.Writer, text string) error {
	if _, err := io.WriteString(out, text); err != nil && !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

// taken tells what to do about a port that another program has, in place of what
// the part says, which knows of settings that dev does not take.
func taken(err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	what := err
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Addr != nil {
		what = fmt.Errorf("%s: %w", op.Addr, unix.EADDRINUSE)
	}
	return fmt.Errorf("%w\nanother program has that port (another sidestream dev?): stop it, choose ports with --agent-port, --broker-port and --sidecar-port, or let the system choose with --free-ports", what)
}

func (o devOptions) address(port int) string {
	if o.freePorts {
		port = 0
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func (o devOptions) agentConfig() agent.Config {
	cfg := agent.DefaultConfig()
	cfg.DataDir = filepath.Join(o.dataDir, "agent")
	cfg.Listen = o.address(o.agentPort)
	cfg.Broker.Listen = o.address(o.kafkaPort)
	cfg.Broker.AutoCreateTopics = true
	return cfg
}

func (o devOptions) sidecarConfig(i int) sidecar.Config {
	cfg := sidecar.DefaultConfig()
	cfg.DataDir = filepath.Join(o.dataDir, fmt.Sprintf("sidecar-%d", i+1))
	cfg.Listen = o.address(o.sidecarPort + i*sidecarPortStep)
	cfg.AutoCreateTopics = true
	return cfg
}

// lockDir makes sure that only one dev serves a data folder, before anything
// in it is read.
func lockDir(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, "dev.lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	folder, err := os.Open(dir) // locked too: the file's lock is worth nothing once somebody has removed the file
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if again := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil && errors.Is(again, unix.EWOULDBLOCK) {
		err = again // where folders cannot be locked the file's lock is all there is
	}
	if err != nil {
		_ = folder.Close()
		err = errors.Join(fmt.Errorf("data folder %s is in use by another sidestream dev: stop it, or name another folder with --data-dir (%w)", dir, err), f.Close())
		return nil, err
	}
	return func() { _, _ = f.Close(), folder.Close() }, nil // closing unlocks; nothing was written
}

func banner(dir string, info devserver.Info) string {
	text := fmt.Sprintf(`Sidestream %s is ready. Ctrl-C stops it; the data stays in
%s

  sidecar   %s   HTTP for applications
`, versionText(), dir, info.Sidecars[0])
	for _, s := range info.Sidecars[1:] {
		text += fmt.Sprintf("            %s\n", s)
	}
	return text + fmt.Sprintf(`  broker    %s          Kafka protocol
  agent     %s   health, status, metrics

Try, in another terminal:

  curl %[4]s/topics/hello -d 'hi'
  curl -X POST '%[4]s/groups/g/topics/hello/pull?wait=5s'
  curl %[4]s/groups/g/topics/hello/ack -d '{"receipts":["the receipt of the message"]}'

`, info.Broker, info.Agent, nil, info.Sidecars[0])
}
