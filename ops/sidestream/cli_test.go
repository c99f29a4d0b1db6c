package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's pool sleeps for up to ten seconds after its end, and its
		// clock runs for ever, as do those of gnet's default pool.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// result of a command as a shell would see it.
type result struct {
	out, err string
	code     int
	failure  error
}

// command runs the binary's command line in this process.
func command(ctx context.Context, stdin string, args ...string) result {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	err := root.ExecuteContext(ctx)
	if err != nil {
		errs.WriteString(err.Error())
	}
	return result{out.String(), errs.String(), exitCode(err), err}
}

func TestUsageErrorsSayWhatIsRight(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"topik"}, "did you mean topic?"},
		{[]string{"topic", "creat", "x"}, "did you mean create?"},
		{[]string{"dev", "extra"}, `unexpected argument "extra"`},
		{[]string{"dev", "--sidecar", "2"}, "unknown flag: --sidecar"},
		{[]string{"dev", "--sidecars", "0"}, "use 1 to 16"},
		{[]string{"topic", "create"}, "usage: sidestream topic create NAME"},
		{[]string{"topic", "create", "x", "--config", "y"}, "use name=value"},
		{[]string{"produce"}, "usage: sidestream produce TOPIC [FILE]"},
		{[]string{"produce", "t", "--batch", "0"}, "use 1 to 10000"},
		{[]string{"produce", "t", "--sidecar", "ftp://x"}, "use http://host:port"},
		{[]string{"consume", "t", "--max", "-1"}, "use 1 or more"},
		{[]string{"group", "seek", "g", "t"}, "at least one of the flags in the group [to offset] is required"},
		{[]string{"log", "dump", "cli_test.go"}, "name a file that ends in .log"},
		{[]string{"metadata", "rebuild"}, "--cluster-id"},
		{[]string{"metadata", "rebuild", "a", "--cluster-id", "b"}, "two cluster-ids"},
		{[]string{"config", "check", "broker"}, `unknown command "broker"`},
		{[]string{"config", "check", "agent", "--broker-loops", "many"}, `flag --broker-loops: got "many": use a whole number`},
		{[]string{"config", "check", "agent", "--log-level", "loud"}, `log.level: got "loud": use debug, info, warn or error`},
		{[]string{"config", "check", "sidecar", "--consul-check-ttl=1ms"}, "consul.check_ttl"},
	} {
		r := command(t.Context(), "", c.args...)
		// Cobra checks groups of flags itself, after our own checks.
		if r.code != exitUsage && !strings.Contains(c.want, "in the group") {
			t.Errorf("%v: exit code %d, want %d", c.args, r.code, exitUsage)
		}
		if !strings.Contains(r.err, c.want) {
			t.Errorf("%v: %q lacks %q", c.args, r.err, c.want)
		}
	}
}

func TestConfigCheckShowsWhatIsInEffectAndWhy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("rack: a\nbroker:\n  listen: 127.0.0.1:19092\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SIDESTREAM_BROKER_LOOPS", "3")
	t.Setenv("SIDESTREAM_KAFKA_CLIENT_ID", "the sidecar's") // no error for the agent
	r := command(t.Context(), "", "config", "check", "agent", "--config", file, "--log-level=warn", "--consul-token", "hunter2")
	if r.failure != nil {
		t.Fatal(r.failure)
	}
	for _, want := range []string{"rack: a ", "# " + file + ":1", "  loops: 3 ", "# SIDESTREAM_BROKER_LOOPS", "  level: warn ", "# --log-level", `token: "(hidden)"`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	// What is printed can be kept as a file.
	kept := filepath.Join(t.TempDir(), "kept.yaml")
	if err := os.WriteFile(kept, []byte(r.out), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := command(t.Context(), "", "config", "check", "agent", "--config", kept); again.failure != nil {
		t.Error(again.failure)
	}
}

func TestConfigCheckReportsEveryError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sidecar.yaml")
	if err := os.WriteFile(file, []byte("lisen: x\nconsume:\n  lease: 30\nkafka:\n  sasl: {user: [a]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SIDESTREAM_LISEN", "y")
	r := command(t.Context(), "", "config", "check", "sidecar", "--config", file)
	for _, want := range []string{file + ":1: unknown key lisen: did you mean listen?", file + `:3: consume.lease: got "30"`, file + ":5: kafka.sasl.user", "SIDESTREAM_LISEN sets nothing"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("no %q in\n%s", want, r.err)
		}
	}
	if r.code != exitUsage {
		t.Errorf("exit code %d", r.code)
	}
}

func TestSampleConfigurationsAreValid(t *testing.T) {
	for _, name := range []string{"agent", "sidecar"} {
		r := command(t.Context(), "", "config", "check", name, "--config", "../deploy/"+name+".yaml")
		if r.failure != nil {
			t.Error(r.failure)
		}
	}
}

// The generated documents are current; `make docs` writes them.
func TestDocs(t *testing.T) {
	for name, write := range generatedDocs() {
		var want strings.Builder
		if err := write(&want); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want.String() {
			t.Errorf("ops/docs/%s is not what the code says: run make docs", name)
		}
	}
}

// Every key of a configuration is documented.
func TestEveryKeyHasHelp(t *testing.T) {
	for name, cfg := range map[string]any{"agent": defaultAgent(), "sidecar": defaultSidecar()} {
		for _, f := range fieldsOf(cfg) {
			if len(f.Help) < 10 || !strings.HasSuffix(f.Help, ".") {
				t.Errorf("%s: %s: the help %q is no sentence", name, f.Path, f.Help)
			}
		}
	}
}

func TestCompletionAndVersion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := command(t.Context(), "", "completion", shell); r.failure != nil || !strings.Contains(r.out, "sidestream") {
			t.Errorf("%s: %v", shell, r.failure)
		}
	}
	if r := command(t.Context(), "", "version"); !strings.HasPrefix(r.out, "sidestream ") {
		t.Errorf("got %q", r.out)
	}
}

// fakeServer is a server of parts.
type fakeServer struct {
	ready chan struct{}
	run   func(ctx context.Context) error
}

func (f fakeServer) Run(ctx context.Context) error { return f.run(ctx) }
func (f fakeServer) Ready() <-chan struct{}        { return f.ready }

func TestPartsStopInReverse(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var order []string
	serving := func(name string) fakeServer {
		ready := make(chan struct{})
		close(ready)
		return fakeServer{ready, func(ctx context.Context) error {
			<-ctx.Done()
			order = append(order, name) // stop waits for each before the next
			return nil
		}}
	}
	p := newParts(ctx)
	if !p.start("a", serving("a")) || !p.start("b", serving("b")) {
		t.Fatal("not started")
	}
	cancel()
	if err := errors.Join(p.wait(), p.stop()); err != nil || strings.Join(order, "") != "ba" {
		t.Errorf("stopped in order %v, %v", order, err)
	}
}

func TestPartThatEndsIsAnError(t *testing.T) {
	p := newParts(t.Context())
	if p.start("a", fakeServer{make(chan struct{}), func(context.Context) error { return errors.New("port taken") }}) {
		t.Error("started")
	}
	if err := p.wait(); err == nil || err.Error() != "a: port taken" {
		t.Errorf("got %v", err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}
