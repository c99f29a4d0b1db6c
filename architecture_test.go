// Package sidestream_test holds the rules of the house as tests: which folder
// may import which, and why.
package sidestream_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "sidestream"

// An arrow says what of our own a folder and those below it may import,
// besides themselves. The longest matching folder counts. Tests obey too.
type arrow struct {
	folder  string
	imports []string
	reason  string
}

var arrows = []arrow{
	{"broker", nil, "the broker knows nothing of Consul, agents or HTTP: who leads what comes through its Cluster interface"},
	{"broker/record", nil, "bytes only: everything may stand on it"},
	{"broker/disk", nil, "a file system only: everything may stand on it"},
	{"discovery", nil, "the ground floor: coordination is the same for agents and sidecars"},
	{"discovery/httpd", nil, "what both daemons refuse of HTTP, whatever they serve"},
	{"agent", []string{"broker", "discovery"}, "the agent is what joins a broker to the cluster; it serves no application"},
	{"sidecar", []string{"discovery", "sdk/api"}, "the sidecar must run unchanged against Apache Kafka, so nothing of the broker may be in it; its unit tests use a fake Kafka"},
	{"sidecar/upstream", []string{"broker/record", "discovery", "sdk/api"}, "bytes only, no broker: what bounds the unpacking of a batch is the same at both ends"},
	{"sidecar/spool", []string{"broker/commitlog", "broker/record", "broker/disk", "sidecar/publish", "sidecar/upstream", "sdk/api"}, "the spool is a log on the application's host: the same log code, no broker"},
	{"sidecar/idempotency", []string{"broker/commitlog", "broker/record", "broker/disk", "sdk/api", "sidecar/publish", "sidecar/upstream"}, "its journal is a log on the application's host: the same log code, no broker"},
	{"sdk", nil, "an application links the client and nothing else"},
	{"sdk/api", nil, "the one definition of the HTTP types: client and server stand on it"},
	{"examples", []string{"sdk"}, "an example shows what an application would write"},
	{"ops", []string{"agent", "broker", "discovery", "examples", "sdk", "sidecar"}, "the binary and the whole-system tests put everything together"},
}

// A fence keeps a foreign module in the folders that wrap it.
type fence struct {
	module  string // import path prefix
	folders []string
	tests   bool // tests elsewhere may import it all the same
	reason  string
}

var fences = []fence{
	{"github.com/hashicorp/consul", []string{"discovery"}, false, "Consul's words stay in discovery: the rest sees its interfaces"},
	{"github.com/panjf2000/gnet", []string{"broker/kafka"}, false, "event loops are the Kafka server's business alone"},
	{"github.com/valyala/fasthttp", []string{"agent", "discovery/httpd", "sidecar"}, true, "only the two daemons serve HTTP"},
	{"github.com/twmb/franz-go/pkg/kgo", []string{"sidecar", "ops"}, true, "the broker passes batches through and must not need a client to do it"},
	{"github.com/twmb/franz-go/pkg/kfake", nil, true, "a test double"},
	{"github.com/spf13/cobra", []string{"ops"}, false, "command lines belong to the binary"},
	{"go.etcd.io/bbolt", []string{"sidecar/offsets"}, true, "one package writes the sidecar's local store"},
}

var topFolders = []string{"agent", "broker", "discovery", "examples", "ops", "sdk", "sidecar"}

// source is one parsed Go file of the main module.
type source struct {
	folder string // relative, "" for the root
	name   string
	file   *ast.File
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

func TestArrows(t *testing.T) {
	for _, s := range sources(t) {
		if s.folder == "." {
			continue
		}
		for _, imported := range imports(s) {
			target, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			a, found := arrowOf(s.folder)
			if !found {
				t.Errorf("%s/%s: no arrow for this folder", s.folder, s.name)
				continue
			}
			if !a.allows(target) {
				t.Errorf("%s/%s imports %s: %s", s.folder, s.name, target, a.reason)
			}
		}
	}
}

// The rules themselves: what they must refuse and allow.
func TestArrowsRefuse(t *testing.T) {
	for _, c := range []struct {
		folder, target string
		allowed        bool
	}{
		{"broker", "discovery", false},
		{"broker/kafka", "agent", false},
		{"broker/commitlog", "broker/record", true},
		{"broker/disk", "broker/record", false},
		{"broker/record/recordtest", "broker/record", true},
		{"discovery", "sdk/api", false},
		{"discovery/discoverytest", "discovery", true},
		{"agent/controller", "broker/cluster", true},
		{"agent", "sidecar", false},
		{"sidecar/consume", "broker", false},
		{"sidecar/publish", "broker/commitlog", false},
		{"sidecar/upstream", "broker/record/unpack", true},
		{"sidecar/upstream", "broker/commitlog", false},
		{"sidecar/spool", "broker/commitlog", true},
		{"sidecar/api", "sdk/api", true},
		{"sidecar/api", "sdk", false},
		{"sdk", "sdk/api", true},
		{"sdk", "discovery", false},
		{"sdk/api", "sdk", false},
		{"examples/pageviews", "sdk", true},
		{"examples/pageviews", "ops/devserver", false},
		{"ops/demo", "examples/pageviews", true},
	} {
		a, found := arrowOf(c.folder)
		if !found || a.allows(c.target) != c.allowed {
			t.Errorf("%s imports %s: allowed %v, want %v", c.folder, c.target, !c.allowed, c.allowed)
		}
	}
}

func arrowOf(folder string) (best arrow, found bool) {
	for _, a := range arrows {
		if within(folder, a.folder) && len(a.folder) >= len(best.folder) {
			best, found = a, true
		}
	}
	return best, found
}

func (a arrow) allows(target string) bool {
	return within(target, a.folder) || slices.ContainsFunc(a.imports, func(allowed string) bool { return within(target, allowed) })
}

func within(folder, parent string) bool {
	return folder == parent || strings.HasPrefix(folder, parent+"/")
}

func TestFences(t *testing.T) {
	for _, s := range sources(t) {
		for _, imported := range imports(s) {
			for _, f := range fences {
				inside := slices.ContainsFunc(f.folders, func(folder string) bool { return within(s.folder, folder) })
				if within(imported, f.module) && !inside && !(f.tests && s.isTest()) {
					t.Errorf("%s/%s imports %s: %s", s.folder, s.name, imported, f.reason)
				}
			}
		}
	}
}

func TestTopFolders(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	// Folders that are ignored by git may lie about.
	ignored := []string{"bin", "data"}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(topFolders, e.Name()) && !slices.Contains(ignored, e.Name()) {
			t.Errorf("folder %s: the top level is %s; put it under one of them", e.Name(), strings.Join(topFolders, ", "))
		}
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string]int{}
	for _, s := range sources(t) {
		if _, seen := comments[s.folder]; !seen {
			comments[s.folder] = 0
		}
		if s.file.Doc != nil && (!s.isTest() || s.folder == ".") {
			comments[s.folder]++
			want := "Package " + s.file.Name.Name + " "
			if text := s.file.Doc.Text(); s.file.Name.Name != "main" && !strings.HasPrefix(text, want) {
				t.Errorf("%s/%s: the package comment begins %.40q, want %q", s.folder, s.name, text, want)
			}
		}
	}
	for folder, n := range comments {
		if n != 1 && hasCode(t, folder) {
			t.Errorf("%s: %d package comments, want one that says what it is for", folder, n)
		}
	}
}

// hasCode tells packages from folders that hold only tests.
func hasCode(t *testing.T, folder string) bool {
	for _, s := range sources(t) {
		if s.folder == folder && !s.isTest() {
			return true
		}
	}
	return false
}

var parsed []source

// sources parses every Go file of the main module; nested modules are not ours
// to judge here.
func sources(t *testing.T) []source {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := os.Stat(filepath.Join(p, "go.mod"))
			hidden := p != "." && strings.HasPrefix(d.Name(), ".")
			if hidden || d.Name() == "testdata" || p != "." && err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(set, p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		parsed = append(parsed, source{folder: path.Dir(filepath.ToSlash(p)), name: d.Name(), file: f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func imports(s source) []string {
	var paths []string
	for _, i := range s.file.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}
