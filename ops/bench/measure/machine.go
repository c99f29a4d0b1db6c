package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine names what was measured on.
func Machine() string {
	var u unix.Utsname
	kernel := "an unknown kernel"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	cpu := "unknown processors"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				cpu = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	memory := ""
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		memory = fmt.Sprintf(", %d GiB memory", (info.Totalram*uint64(info.Unit)+1<<29)>>30)
	}
	return fmt.Sprintf("%d × %s%s, %s, %s", runtime.NumCPU(), cpu, memory, kernel, runtime.Version())
}

// LoadAverage is that of the last 1, 5 and 15 minutes.
func LoadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// Touch writes so many bytes and removes them: a virtual machine gets its memory
// from its host at the first touch, which is slow.
func Touch(dir string, bytes int64) error {
	Progress("warming %d MB of page cache", bytes>>20)
	f, err := os.Create(filepath.Join(dir, "touch"))
	if err != nil {
		return err
	}
	b := make([]byte, 1<<20)
	for n := int64(0); n < bytes; n += int64(len(b)) {
		if _, err := f.Write(b); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Progress tells on standard error what is being done.
func Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
