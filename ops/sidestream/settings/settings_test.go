package settings

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

type base struct {
	Listen string        `yaml:"listen" help:"Address."`
	Lease  time.Duration `yaml:"lease" help:"Lease."`
}

type kafka struct {
	Bootstrap []string          `yaml:"bootstrap" help:"Brokers."`
	ClientID  string            `yaml:"client_id" help:"Name."`
	Password  string            `yaml:"password" help:"Secret."`
	Labels    map[string]string `yaml:"labels" help:"Labels."`
}

type sample struct {
	Inline base    `yaml:",inline"`
	ID     int32   `yaml:"id" help:"Number."`
	Ratio  float64 `yaml:"ratio" help:"Ratio."`
	Strict bool    `yaml:"strict" help:"Switch."`
	Kafka  kafka   `yaml:"kafka"`
	Hidden string  `yaml:"-"`
}

func defaults() *sample {
	return &sample{Inline: base{Listen: "127.0.0.1:1", Lease: 30 * time.Second}, Kafka: kafka{ClientID: "x"}}
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrecedenceIsFileThenEnvironmentThenFlags(t *testing.T) {
	file := write(t, "listen: file:1\nlease: 1m\nid: 7\nkafka:\n  client_id: file\n  bootstrap: [a:1, b:2]\n  labels: {k: v}\n")
	cfg := defaults()
	origins, err := Load(cfg, Source{
		File:    file,
		Environ: []string{"SIDESTREAM_KAFKA_CLIENT_ID=env", "SIDESTREAM_LEASE=2m", "PATH=/bin", "SIDESTREAM_STRICT=true"},
		Flags:   map[string]string{"lease": "3m", "ratio": "0.5"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Inline = base{Listen: "file:1", Lease: 3 * time.Minute}
	want.ID, want.Ratio, want.Strict = 7, 0.5, true
	want.Kafka = kafka{ClientID: "env", Bootstrap: []string{"a:1", "b:2"}, Labels: map[string]string{"k": "v"}}
	if !reflect.DeepEqual(cfg, want) {
		t.Fatalf("got  %+v\nwant %+v", cfg, want)
	}
	for path, origin := range map[string]Origin{
		"listen": Origin(file + ":1"), "lease": "--lease", "kafka.client_id": "SIDESTREAM_KAFKA_CLIENT_ID", "ratio": "--ratio",
	} {
		if origins[path] != origin {
			t.Errorf("origin of %s: got %q, want %q", path, origins[path], origin)
		}
	}
}

func TestErrorsNameKeyLineAndRightForm(t *testing.T) {
	for name, c := range map[string]struct {
		src  Source
		text string
		want []string
	}{
		"unknown key":           {text: "id: 1\nlisen: x\n", want: []string{":2: unknown key lisen: did you mean listen?"}},
		"key in wrong section":  {text: "client_id: x\n", want: []string{"unknown key client_id: did you mean kafka.client_id?"}},
		"unknown nested key":    {text: "kafka:\n  bootstraps: [a]\n", want: []string{":2: unknown key kafka.bootstraps: did you mean bootstrap?"}},
		"nothing near":          {text: "zzzzzzzz: 1\n", want: []string{"the keys here are id, kafka, lease, listen, ratio, strict"}},
		"given twice":           {text: "id: 1\nid: 2\n", want: []string{"id"}},
		"duration without unit": {text: "lease: 30\n", want: []string{`:1: lease: got "30": use a duration such as`}},
		"number":                {text: "id: many\n", want: []string{`id: got "many": use a whole number`}},
		"number too large":      {text: "id: 3000000000\n", want: []string{"at most 32 bits"}},
		"bool":                  {text: "strict: maybe\n", want: []string{"use true or false"}},
		"empty value":           {text: "listen:\n", want: []string{"listen: got nothing: use a text, or leave the key out for the default 127.0.0.1:1"}},
		"list wanted":           {text: "kafka: {bootstrap: a}\n", want: []string{`kafka.bootstrap: got "a": use a list such as [a, b]`}},
		"map wanted":            {text: "kafka: {labels: [a]}\n", want: []string{"kafka.labels: got a list: use a map"}},
		"section wanted":        {text: "kafka: 3\n", want: []string{"kafka: expected keys under it"}},
		"not a map":             {text: "- a\n", want: []string{"the file: expected keys"}},
		"no yaml":               {text: "a: [\n", want: []string{"c.yaml"}},
		"all at once":           {text: "lisen: x\nlease: 3\n", want: []string{"lisen", "lease"}},
		"environment, unknown":  {src: Source{Environ: []string{"SIDESTREAM_LISEN=x"}}, want: []string{"SIDESTREAM_LISEN sets nothing: did you mean SIDESTREAM_LISTEN?"}},
		"environment, bad":      {src: Source{Environ: []string{"SIDESTREAM_LEASE=x"}}, want: []string{"environment variable SIDESTREAM_LEASE: got \"x\""}},
		"flag, bad":             {src: Source{Flags: map[string]string{"kafka-labels": "a"}}, want: []string{"flag --kafka-labels: got \"a\": use key=value"}},
		"file missing":          {src: Source{File: "/nonexistent/x.yaml"}, want: []string{"/nonexistent/x.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.text != "" {
				c.src.File = write(t, c.text)
			}
			_, err := Load(defaults(), c.src)
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
		})
	}
}

func TestVariablesThatOthersSetAreNoError(t *testing.T) {
	_, err := Load(defaults(), Source{Known: []string{"SIDESTREAM_CONFIG"}, Environ: []string{
		"SIDESTREAM_CONFIG=/etc/x", "SIDESTREAM_SERVICE_HOST=10.0.0.1", "SIDESTREAM_SERVICE_PORT_HTTP=4100",
		"SIDESTREAM_PORT=tcp://10.0.0.1:4100", "SIDESTREAM_PORT_4100_TCP_ADDR=10.0.0.1",
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEmptyFileAndEmptySectionChangeNothing(t *testing.T) {
	for _, text := range []string{"", "# only a comment\n", "kafka:\n"} {
		cfg := defaults()
		if _, err := Load(cfg, Source{File: write(t, text)}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if !reflect.DeepEqual(cfg, defaults()) {
			t.Errorf("%q changed the configuration", text)
		}
	}
}

// What is shown must be readable again, so that it can be kept as a file.
func TestShowRoundTrips(t *testing.T) {
	cfg := defaults()
	cfg.Kafka.Labels = map[string]string{"a b": "c: d", "n": "1"}
	cfg.Kafka.Bootstrap = []string{"[::1]:9092", "yes", "host:9092", "- x", ""}
	cfg.Kafka.ClientID = "#no comment\n"
	cfg.Inline.Lease = 168 * time.Hour
	var out bytes.Buffer
	if err := Show(&out, cfg, map[string]Origin{"lease": "--lease"}); err != nil {
		t.Fatal(err)
	}
	again := defaults()
	if _, err := Load(again, Source{File: write(t, out.String())}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !reflect.DeepEqual(cfg, again) {
		t.Fatalf("got  %+v\nwant %+v\n%s", again, cfg, out.String())
	}
	if !strings.Contains(out.String(), "168h ") || !strings.Contains(out.String(), "# --lease") {
		t.Errorf("lease is not shown short and with its origin:\n%s", out.String())
	}
}

func TestSecretsAreHidden(t *testing.T) {
	cfg := defaults()
	cfg.Kafka.Password = "hunter2"
	var out bytes.Buffer
	if err := Show(&out, cfg, nil); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Error("the password is shown")
	}
}

func TestFlagsAreReadInBothSpellings(t *testing.T) {
	for _, args := range [][]string{
		{"--kafka-client-id=me", "--strict"},
		{"--kafka.client_id", "me", "--strict=true"},
	} {
		set := pflag.NewFlagSet("t", pflag.ContinueOnError)
		cfg := defaults()
		Bind(set, cfg)
		if err := set.Parse(args); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(cfg, Source{Flags: Given(set)}); err != nil {
			t.Fatal(err)
		}
		if cfg.Kafka.ClientID != "me" || !cfg.Strict {
			t.Errorf("%v gave %+v", args, cfg)
		}
	}
}

func TestTwoKeysWithOneNameAreRefused(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Fields(&struct {
		A struct {
			BC int `yaml:"b_c"`
		} `yaml:"a"`
		AB struct {
			C int `yaml:"c"`
		} `yaml:"a_b"`
	}{})
}

func TestMarkdownListsEveryKey(t *testing.T) {
	var out bytes.Buffer
	if err := Markdown(&out, defaults()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| `listen` | `127.0.0.1:1` | Address. (text) | `SIDESTREAM_LISTEN`<br>`--listen` |", "### `kafka`", "`kafka.labels`"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// The help tells each default once.
func TestFlagsTellTheirDefaultOnce(t *testing.T) {
	set := pflag.NewFlagSet("t", pflag.ContinueOnError)
	Bind(set, &struct {
		Listen string        `yaml:"listen" help:"Address; loopback by default because of x."`
		Loops  int           `yaml:"loops" help:"Loops, 1 to 64; 2 by default."`
		Size   int           `yaml:"size" help:"Size; 100 MiB by default as in x."`
		Wait   time.Duration `yaml:"wait" help:"Wait (default 3s)."`
		Rack   string        `yaml:"rack" help:"Rack."`
	}{Listen: "127.0.0.1:1", Loops: 2, Size: 104857600, Wait: 3 * time.Second})
	if got := set.FlagUsages(); strings.Count(got, "(default") != 2 || !strings.Contains(got, "(default 127.0.0.1:1)") {
		t.Errorf("got\n%s", got)
	}
}
