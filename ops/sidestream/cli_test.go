package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"sidestream/sdk/api"
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
		errs.WriteString(message(err))
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
		{[]string{"topic", "create"}, "NAME is missing\nusage: sidestream topic create NAME"},
		{[]string{"topic", "create", "x", "--partitions", "0"}, "use 1 or more, or -1"},
		{[]string{"topic", "create", "x", "y"}, `unexpected argument "y"`},
		{[]string{"topic", "delete"}, "NAME is missing"},
		{[]string{"topic", "alter", "x"}, "nothing to change: use --config name=value, --delete-config name or --partitions number"},
		{[]string{"topic", "alter", "x", "--delete-config", "a=b"}, "use a name such as retention.ms"},
		{[]string{"topic", "alter", "x", "--config", "a=b", "--delete-config", "a"}, "a is both set and deleted"},
		{[]string{"consume"}, "TOPIC is missing"},
		{[]string{"group", "seek", "g", "--to", "latest"}, "TOPIC is missing"},
		{[]string{"group", "describe"}, "GROUP is missing"},
		{[]string{"topic", "create", "x", "--config", "y"}, "use name=value"},
		{[]string{"produce"}, "TOPIC is missing\nusage: sidestream produce TOPIC [FILE]"},
		{[]string{"produce", "t", "--batch", "0"}, "use 1 to 10000"},
		{[]string{"produce", "t", "--sidecar", "ftp://x"}, "use http://host:port"},
		{[]string{"produce", "t", "--key", "a", "--key-field", "b"}, "leave out --key-field and --json"},
		{[]string{"consume", "t", "--max", "-1"}, "use 1 or more"},
		{[]string{"group", "seek", "g", "t"}, "use --to earliest, --to latest, --to with a time (RFC 3339), or --offset partition=offset"},
		{[]string{"group", "seek", "g", "t", "--to", "latest", "--offset", "0=1"}, "--to and --offset are both given"},
		{[]string{"group", "redrive", "g", "t", "--to", "u", "--discard"}, "--to and --discard are both given"},
		{[]string{"group", "redrive", "g", "t", "--reason", "tired"}, "use max_attempts, window_full, undecodable or oversized"},
		{[]string{"group", "redrive", "g", "t", "--max", "-1"}, "use 1 or more, or 0 for all"},
		{[]string{"group", "dead", "g", "t", "--max", "0"}, "use 1 or more"},
		{[]string{"group", "configure", "g", "--order", "keys"}, "use partition, key or none"},
		{[]string{"topic", "create", "x", "--replication", "0"}, "use 1 or more, or -1"},
		{[]string{"log", "dump", "cli_test.go"}, "name a file that ends in .log"},
		{[]string{"log", "dump", "."}, "name the folder of a partition, such as hello-0"},
		{[]string{"metadata", "rebuild"}, "--cluster-id"},
		{[]string{"metadata", "rebuild", "a", "--cluster-id", "b"}, "two cluster-ids"},
		{[]string{"config", "check", "broker"}, `unknown command "broker"`},
		{[]string{"config", "check", "agent", "--broker-loops", "many"}, `flag --broker-loops: got "many": use a whole number`},
		{[]string{"config", "check", "agent", "--log-level", "loud"}, `log.level: got "loud": use debug, info, warn or error`},
		{[]string{"config", "check", "sidecar", "--consul-check-ttl=1ms"}, "consul.check_ttl"},
	} {
		r := command(t.Context(), "", c.args...)
		if r.code != exitUsage {
			t.Errorf("%v: exit code %d, want %d", c.args, r.code, exitUsage)
		}
		if !strings.Contains(r.err, c.want) {
			t.Errorf("%v: %q lacks %q", c.args, r.err, c.want)
		}
	}
}

// An agent that was started in a shell with SIDESTREAM_AGENT, which tells commands
// whom to ask, ended with "environment variable SIDESTREAM_AGENT sets nothing".
func TestServersLeaveTheVariablesOfCommandsAlone(t *testing.T) {
	for _, name := range commandVariables {
		t.Setenv(name, "127.0.0.1:1")
	}
	for _, server := range []string{"agent", "sidecar"} {
		if r := command(t.Context(), "", "config", "check", server); r.code != exitOK {
			t.Errorf("%s: %d %s", server, r.code, r.err)
		}
	}
	if ignored := ignoredVariables(os.Environ()); len(ignored) > 0 {
		t.Errorf("dev says that it ignores %v", ignored)
	}
}

// A flag's error showed the parser's own words: invalid argument "x" for
// "-n, --max" flag: strconv.ParseInt: parsing "x": invalid syntax.
func TestFlagErrorsSayWhatIsRight(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"consume", "t", "-n", "many"}, `--max: got "many": use a whole number (see sidestream consume --help)`},
		{[]string{"topic", "create", "t", "--partitions", "99999999999"}, `--partitions: got "99999999999": use a whole number up to 2147483647`},
		{[]string{"topic", "create", "t", "--replication", "40000"}, "use a whole number up to 32767"},
		{[]string{"produce", "t", "--timeout", "5"}, `--timeout: got "5": use a duration such as 500ms, 5s or 1m`},
		{[]string{"consume", "t", "--json=perhaps"}, `--json: got "perhaps": use true or false`},
		{[]string{"topic", "read", "t", "--partition", "1;2"}, "use whole numbers with commas between them"},
		{[]string{"consume", "t", "--group"}, "--group needs a value: use a text"},
		{[]string{"consume", "t", "--until-ned"}, "unknown flag: --until-ned: did you mean --until-end?"},
		{[]string{"consume", "t", "-json"}, "unknown flag: -j: did you mean --json?"},
		{[]string{"consume", "t", "--=x"}, "use --flag value or --flag=value"},
	} {
		r := command(t.Context(), "", c.args...)
		if r.code != exitUsage || !strings.Contains(r.err, c.want) || strings.Contains(r.err, "strconv") {
			t.Errorf("%v: %d %q lacks %q", c.args, r.code, r.err, c.want)
		}
	}
}

// What failed is told once, with what to do about it.
func TestErrorsAreToldOnce(t *testing.T) {
	r := command(t.Context(), "", "group", "list", "--sidecar", "127.0.0.1:1")
	if r.code != exitFailed || !strings.Contains(r.err, `"sidestream dev" runs one`) || !strings.Contains(r.err, "--sidecar") {
		t.Errorf("%d %s", r.code, r.err)
	}
	if got := withText(kerr.TopicAlreadyExists, `topic "x" exists`); got.Error() != `topic "x" exists (TOPIC_ALREADY_EXISTS)` || !errors.Is(got, kerr.TopicAlreadyExists) {
		t.Errorf("%v", got)
	}
	if got := withText(kerr.TopicAlreadyExists, ""); !errors.Is(got, kerr.TopicAlreadyExists) {
		t.Errorf("%v", got)
	}
	in := fmt.Errorf("sidecar-1: listen: 127.0.0.1:4100 is in use: set listen to another address: %w",
		&net.OpError{Op: "listen", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4100}, Err: unix.EADDRINUSE})
	if got := taken(in).Error(); !strings.HasPrefix(got, "127.0.0.1:4100: address already in use\n") || !strings.Contains(got, "--sidecar-port") || strings.Contains(got, "set listen") {
		t.Errorf("%s", got)
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

// The checks of all sections speak, not only the first that fails, and a value
// that cannot be read hides none of them.
func TestConfigCheckValidatesEverySection(t *testing.T) {
	r := command(t.Context(), "", "config", "check", "agent", "--id", "x", "--default-replication", "3",
		"--broker-max-fetch-wait", "-1s", "--broker-loops", "99", "--consul-address", "ht tp:/x", "--consul-session-ttl", "1ms",
		"--consul-tls-ca-file", "/nonexistent/ca.pem", "--log-level", "loud", "--log-format", "xml")
	for _, want := range []string{"flag --id", "default_replication: ", "broker.max_fetch_wait: ", "broker.loops: ", `consul.address: got "ht tp:/x"`,
		"consul.session_ttl: ", "consul.tls.ca_file: open /nonexistent/ca.pem", "log.level: ", "log.format: "} {
		if strings.Count(r.err, want) != 1 {
			t.Errorf("%q is there %d times in\n%s", want, strings.Count(r.err, want), r.err)
		}
	}
}

func TestConfigCheckShowsConsulsOwnVariables(t *testing.T) {
	t.Setenv("CONSUL_HTTP_ADDR", "http://consul.example:8500")
	t.Setenv("CONSUL_HTTP_TOKEN", "hunter2")
	r := command(t.Context(), "", "config", "check", "sidecar")
	if r.failure != nil || !strings.Contains(r.out, `address: "http://consul.example:8500"`) && !strings.Contains(r.out, "address: http://consul.example:8500") ||
		!strings.Contains(r.out, "# CONSUL_HTTP_ADDR") || !strings.Contains(r.out, "# CONSUL_HTTP_TOKEN") || strings.Contains(r.out, "hunter2") {
		t.Errorf("%v\n%s", r.failure, r.out)
	}
	r = command(t.Context(), "", "config", "check", "sidecar", "--consul-address", "127.0.0.1:8500")
	if strings.Contains(r.out, "# CONSUL_HTTP_ADDR") || !strings.Contains(r.out, "# --consul-address") {
		t.Errorf("a flag does not win:\n%s", r.out)
	}
	t.Setenv("CONSUL_HTTP_ADDR", "ht tp:/x")
	if r = command(t.Context(), "", "config", "check", "sidecar"); r.code != exitUsage || !strings.Contains(r.err, "consul.address") {
		t.Errorf("exit code %d, %s", r.code, r.err)
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
	for _, arg := range []string{"version", "--version"} {
		if r := command(t.Context(), "", arg); !strings.HasPrefix(r.out, "sidestream ") || strings.Count(r.out, "\n") != 1 {
			t.Errorf("%s: got %q", arg, r.out)
		}
	}
}

// Completion offers files only where a file is meant.
func TestCompletionOfArguments(t *testing.T) {
	for _, c := range []struct {
		args  []string
		words string
		files bool
	}{
		{[]string{"consume", ""}, "", false},
		{[]string{"topic", "describe", ""}, "", false},
		{[]string{"produce", ""}, "", false},
		{[]string{"produce", "t", ""}, "", true},
		{[]string{"log", "dump", ""}, "", true},
		{[]string{"dev", "--log-format", ""}, "auto console json", false},
		{[]string{"agent", "--log-level", ""}, "debug info warn error", false},
		{[]string{"agent", "--rack", ""}, "", false},
		{[]string{"agent", "--config", ""}, "", true},
		{[]string{"agent", "--data-dir", ""}, "", true},
		{[]string{"consume", "t", "--from", ""}, "earliest latest", false},
	} {
		r := command(t.Context(), "", append([]string{"__complete"}, c.args...)...)
		lines := strings.Fields(r.out)
		if len(lines) == 0 {
			t.Errorf("%v: %q", c.args, r.err)
			continue
		}
		last := len(lines) - 1
		if words := strings.Join(lines[:last], " "); words != c.words || (lines[last] == ":0") != c.files {
			t.Errorf("%v: completed with %q, %s", c.args, words, lines[last])
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range everyCommand(newRoot()) {
		if c.Name() == "completion" || c.Hidden {
			continue
		}
		r := command(t.Context(), "", append(strings.Fields(c.CommandPath())[1:], "--help")...)
		for line := range strings.Lines(r.out) {
			if len([]rune(line)) > 122 {
				t.Errorf("%s: a line of %d: %s", c.CommandPath(), len(line), line)
			}
		}
		if c.HasAvailableSubCommands() && !strings.Contains(r.out, "Usage:\n  "+c.CommandPath()+" COMMAND\n") {
			t.Errorf("%s: %s", c.CommandPath(), r.out)
		}
	}
}

// A person who waits is told for what, once for each reason, and at the end of a
// topic too: that nothing is there is a reason.
func TestWaitNotes(t *testing.T) {
	var out strings.Builder
	w := waitNotes{out: &out}
	start := time.Now()
	for _, at := range []struct {
		reason api.Reason
		after  time.Duration // of the answer to a pull of one second
		want   int
	}{
		{api.ReasonAtEnd, time.Second, 1}, {api.ReasonAtEnd, time.Hour, 1},
		{api.ReasonBrokersDown, time.Hour, 2}, {api.ReasonBrokersDown, 2 * time.Hour, 2},
		{api.ReasonRebalancing, 2 * time.Hour, 3}, {"later", 3 * time.Hour, 4},
	} {
		w.empty(api.Pulled{Reason: &at.reason}, start.Add(at.after-time.Second), start.Add(at.after))
		if n := strings.Count(out.String(), "\n"); n != at.want || !strings.Contains(out.String(), "nothing comes: "+string(at.reason)+": ") {
			t.Errorf("%s after %v: %d lines: %s", at.reason, at.after, n, out.String())
		}
	}
	// What passes by is not told.
	short := api.ReasonNoTopic
	w.empty(api.Pulled{Reason: &short}, start, start.Add(endWait))
	w.came(2)
	w.empty(api.Pulled{Reason: &short, Away: 2}, start, start.Add(endWait))
	w.came(0)
	if got := out.String(); strings.Contains(got, "no_topic") || strings.Count(got, "2 partitions away") != 1 || strings.Count(got, "are back") != 1 {
		t.Errorf("%s", got)
	}
}

func TestAfterSpeaksOnlyWhenItTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		stop := after(time.Second, &out, "slow")
		time.Sleep(time.Second + patience - 1)
		stop()
		time.Sleep(time.Hour)
		if out.String() != "" {
			t.Errorf("got %q", out.String())
		}
		stop = after(0, &out, "slow")
		time.Sleep(patience)
		stop()
		if out.String() != "slow\n" {
			t.Errorf("got %q", out.String())
		}
	})
}

func TestHintsAreForTheShell(t *testing.T) {
	for code, c := range map[api.Code][2]string{
		api.CodeTopicNotFound: {"topic t does not exist: create it with PUT /topics/t", `lines 1 to 1: topic_not_found: topic t does not exist: create it with "sidestream topic create"`},
		api.CodeGroupNotFound: {"group g does not exist: its first pull, or PUT /groups/g, makes it", `lines 1 to 1: group_not_found: group g does not exist: its first "sidestream consume" makes it; "sidestream group list" shows what there is`},
		api.CodeGroupConfig:   {"group g begins at from=earliest, not at latest: leave from out, or change it with PUT /groups/g", `lines 1 to 1: group_config: group g begins at from=earliest, not at latest: leave --from out, take another --group, or move it with "sidestream group seek"`},
		api.CodeBadRequest:    {"max=0: use 1 to 1000", "lines 1 to 1: bad_request: max=0: use 1 to 1000"},
	} {
		if got := message(fmt.Errorf("lines 1 to 1: %w", api.NewError(code, c[0]))); got != c[1] {
			t.Errorf("got  %s\nwant %s", got, c[1])
		}
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

// What is not known is not shown as a number.
func TestGroupWithLeadersAway(t *testing.T) {
	var out strings.Builder
	err := printGroup(&out, groupView{Group: api.Group{Group: "g"}, Offsets: []api.Offsets{{Topic: "t", Lag: 3, Partial: true, Partitions: []api.PartitionOffset{
		{Partition: 0, Position: 4, End: 7, Lag: 3}, {Partition: 1, Position: 5, End: -1, Lag: -1}}}}})
	if err != nil || !strings.Contains(out.String(), "topic t: lag 3 and what is not known (?)") || strings.Contains(out.String(), "-1") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
