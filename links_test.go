package sidestream_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	markdownHeading = regexp.MustCompile(`(?m)^#{1,6} (.*)$`)
	codeBlock       = regexp.MustCompile("(?ms)^```.*?^```[ \t]*$")
)

// Pages were renamed and cut up, and links went on to point at what had been
// there: each link within the repository leads to a file, and to a heading in
// it where it names one.
func TestLinksOfDocuments(t *testing.T) {
	links := 0
	for _, page := range pages(t) {
		text := codeBlock.ReplaceAllString(read(t, page), "")
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[0])
				continue
			}
			if anchor != "" && !headings(read(t, file))[anchor] {
				t.Errorf("%s: %s has no heading #%s", page, file, anchor)
			}
		}
	}
	if links < 50 {
		t.Errorf("%d links were found: is the pattern right?", links)
	}
}

func pages(t *testing.T) (found []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// headings are the anchors of a page as GitHub makes them: in lower case,
// without punctuation, with hyphens for spaces.
func headings(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range markdownHeading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		found[b.String()] = true
	}
	return found
}
