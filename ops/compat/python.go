package compat

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// The Python clients. Versions are fixed, so that a run can be repeated; the
// other packages are codecs that a client wants to find installed.
var (
	kafkaPython = &worker{name: "kafka-python",
		command: pythonCommand("kafka_python.py", "kafka-python==3.0.12", "zstandard==0.25.0", "python-snappy==0.7.3", "lz4==4.4.5")}
	// kafkaPythonOld sends requests without having asked whether they are
	// served, so it is held to the refusal of groups, and to commits.
	kafkaPythonOld = &worker{name: "kafka-python 2.0",
		command: pythonCommand("kafka_python.py", "kafka-python==2.0.6")}
	aiokafka = &worker{name: "aiokafka",
		command: pythonCommand("aiokafka_client.py", "aiokafka==0.14.0", "cramjam==2.14.0")}
	confluentNew = &worker{name: "confluent-kafka (Python, new)",
		command: pythonCommand("librdkafka.py", "confluent-kafka==2.16.1")}
	// confluentOld is the distribution's, which `confluent` produces and
	// consumes with; it is asked for commits and groups here.
	confluentOld = &worker{name: "confluent-kafka (Python)",
		command: func(context.Context) (*exec.Cmd, error) {
			python, err := findPython()
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errMissing, err)
			}
			return exec.Command(python, "-u", "python/librdkafka.py"), nil
		}}
)

// pythonCommand installs packages by pip into a folder of their own and runs a
// program of the folder python with them.
func pythonCommand(program string, packages ...string) func(context.Context) (*exec.Cmd, error) {
	return func(ctx context.Context) (*exec.Cmd, error) {
		python, dir, err := pythonPackages(ctx, packages...)
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(python, "-u", "python/"+program)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1")
		return cmd, nil
	}
}

// pythonPackages installs packages by pip and returns the interpreter and their
// folder.
func pythonPackages(ctx context.Context, packages ...string) (python, dir string, err error) {
	python, version, err := findPip()
	if err != nil {
		return "", "", err
	}
	client, _, _ := strings.Cut(packages[0], "==")
	dir, err = cached("python-"+client, version+" "+strings.Join(packages, " "), func(dir string) error {
		return download(ctx, python, append([]string{"-m", "pip", "install", "-q", "--disable-pip-version-check",
			"--no-compile", "--target", dir}, packages...)...)
	})
	return python, dir, err
}

// findPip finds an interpreter that has pip and tells its version, on which
// binary packages depend.
func findPip() (python, version string, err error) {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		out, err := exec.Command(python, "-c", "import pip, sys; print(sys.version)").Output()
		if err == nil {
			return python, string(out), nil
		}
	}
	return "", "", fmt.Errorf("a Python with pip: %w", errMissing)
}
