// Package settings fills configuration structs from, in rising precedence,
// their defaults, a strict YAML file, the environment and command-line flags.
// It knows nothing of what it fills: everything comes from the tags
// `yaml:"snake_key"`, `help:"…"` and `live:"true"` (a reload may change it) of
// the fields.
//
// A key has one name in each place, all made from its path in the struct:
//
//	YAML        kafka: {client_id: x}
//	environment SIDESTREAM_KAFKA_CLIENT_ID=x
//	flag        --kafka-client-id=x    (--kafka.client_id=x is the same)
//
// An unknown key or a bad value is an error that names it and the right form,
// and all errors are reported, not only the first.
package settings

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// EnvPrefix begins the name of every environment variable that is read here.
const EnvPrefix = "SIDESTREAM_"

// Origin tells where the effective value of a key came from.
type Origin string

// OriginDefault: neither the file, the environment nor a flag gave the key.
const OriginDefault Origin = "default"

// Source is what a configuration is read from. Empty parts are skipped.
type Source struct {
	File    string            // path of the YAML file, "" for none
	Environ []string          // "NAME=value" as from os.Environ
	Known   []string          // further SIDESTREAM_ variables that are no error
	Flags   map[string]string // flag name without dashes → value, only those that were given
}

// Load fills cfg, a pointer to a struct that holds the defaults, and tells for
// each key that is not a default where it came from. On error cfg is filled as
// far as possible; the error joins everything that was wrong.
func Load(cfg any, src Source) (map[string]Origin, error) {
	fields := Fields(cfg)
	origins := map[string]Origin{}
	var errs []error
	if src.File != "" {
		text, err := os.ReadFile(src.File)
		if err != nil {
			return origins, fmt.Errorf("reading the configuration file: %w", err)
		}
		errs = append(errs, readYAML(src.File, text, fields, origins)...)
	}
	errs = append(errs, readEnviron(src.Environ, src.Known, fields, origins)...)
	errs = append(errs, readFlags(src.Flags, fields, origins)...)
	return origins, errors.Join(errs...)
}

func readEnviron(environ, known []string, fields []Field, origins map[string]Origin) []error {
	byName := map[string]Field{}
	names := append([]string(nil), known...)
	for _, f := range fields {
		byName[f.Env()] = f
		names = append(names, f.Env())
	}
	var errs []error
	for _, pair := range environ {
		name, value, found := strings.Cut(pair, "=")
		if !found || !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		f, ok := byName[name]
		switch {
		case ok:
			if err := f.SetText(value); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
				continue
			}
			origins[f.Path] = Origin(name)
		case contains(known, name) || isServiceLink(name):
		default:
			errs = append(errs, fmt.Errorf("environment variable %s sets nothing%s", name, Suggest(name, names)))
		}
	}
	return errs
}

func readFlags(flags map[string]string, fields []Field, origins map[string]Origin) []error {
	var errs []error
	for _, f := range fields {
		value, given := flags[f.Flag()]
		if !given {
			continue
		}
		if err := f.SetText(value); err != nil {
			errs = append(errs, fmt.Errorf("flag --%s: %w", f.Flag(), err))
			continue
		}
		origins[f.Path] = Origin("--" + f.Flag())
	}
	return errs
}

// isServiceLink reports whether a variable is one of those that Kubernetes (and
// Docker's links) set by themselves in every container when some service is
// called "sidestream…", such as SIDESTREAM_SIDECAR_SERVICE_HOST or
// SIDESTREAM_PORT_4100_TCP_ADDR: nobody wrote them for us.
func isServiceLink(name string) bool {
	if strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT") {
		return true
	}
	_, after, found := strings.Cut(name, "_PORT")
	return found && (after == "" || strings.Contains(after, "_TCP") || strings.Contains(after, "_UDP"))
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}
