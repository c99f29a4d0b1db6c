package compat

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The Java clients: the last of 3.x, which many still run, and the newest.
var (
	java39 = &worker{name: "kafka-clients 3.9 (Java)", command: javaClients("clients39")}
	java4  = &worker{name: "kafka-clients 4 (Java)", command: javaClients("kafka4")}
)

// javaFlags keep a JVM small and its start quick; its log goes to stderr.
var javaFlags = []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"}

func javaClients(pom string) func(context.Context) (*exec.Cmd, error) {
	return func(ctx context.Context) (*exec.Cmd, error) {
		path, err := classPath(ctx, pom, "Clients")
		if err != nil {
			return nil, err
		}
		return exec.Command("java", slices.Concat(javaFlags, []string{"-cp", path, "Clients"})...), nil
	}
}

// jars has Maven copy what java/<pom>/pom.xml names into a folder. Maven's own
// repository is kept beside it, so that nothing is written into the home folder.
func jars(ctx context.Context, pom string) (string, error) {
	if err := need("java", "javac", "mvn"); err != nil {
		return "", fmt.Errorf("the Java parts need a JDK of version %d or newer, and Maven: %w", oldestJava, err)
	}
	version, err := javacVersion(ctx)
	if err != nil {
		return "", err
	}
	if version < oldestJava {
		return "", fmt.Errorf("the Java parts need a JDK of version %d or newer, and this is %d: %w", oldestJava, version, errMissing)
	}
	file := filepath.Join("java", pom, "pom.xml")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	repository, err := filepath.Abs(filepath.Join(cacheDir, "m2"))
	if err != nil {
		return "", err
	}
	return cached("java-"+pom, string(text), func(dir string) error {
		return download(ctx, "mvn", "-q", "-B", "-f", file, "-Dmaven.repo.local="+repository,
			"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
	})
}

// oldestJava is what Kafka's tools of release 4 need.
const oldestJava = 17

// javacVersion returns the first number of the compiler's version.
func javacVersion(ctx context.Context) (int, error) {
	out, err := run(ctx, "", "javac", "-version") // javac 17.0.15; before 9 on the other stream
	if err != nil {
		return 0, err
	}
	number := strings.TrimPrefix(strings.TrimSpace(out), "javac ")
	end := strings.IndexFunc(number+".", func(r rune) bool { return r < '0' || r > '9' })
	version, err := strconv.Atoi(number[:end])
	if err != nil {
		return 0, nil // older than any that prints so
	}
	return version, nil
}

// classPath compiles java/<program>.java against the jars of a pom.
func classPath(ctx context.Context, pom, program string) (string, error) {
	dir, err := jars(ctx, pom)
	if err != nil {
		return "", err
	}
	file := filepath.Join("java", program+".java")
	source, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	jarPath := filepath.Join(dir, "*")
	classes, err := cached("classes-"+pom, dir+string(source), func(dir string) error {
		_, err := run(ctx, "", "javac", "-nowarn", "-d", dir, "-cp", jarPath, file)
		return err
	})
	return classes + string(filepath.ListSeparator) + jarPath, err
}

// tool runs one of Kafka's own command-line tools, named by its class below
// org.apache.kafka.tools, and returns all that it printed, whether it succeeded or not.
func tool(ctx context.Context, input, class string, args ...string) (string, error) {
	dir, err := jars(ctx, "kafka4")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "java", slices.Concat(javaFlags, []string{"-cp", filepath.Join(dir, "*"), "org.apache.kafka.tools." + class}, args)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", class, strings.Join(args, " "), err)
	}
	return string(out), err
}
