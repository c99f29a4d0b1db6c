package main

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// logSettings are the log section of the servers' configuration.
type logSettings struct {
	Level  string `yaml:"level" live:"true" help:"Least severity that is logged: debug, info, warn or error."`
	Format string `yaml:"format" help:"console for people, json for machines; auto takes console when standard error is a terminal."`
}

// What the settings of the log may be, for the completion of flags.
var (
	logLevels  = []string{"debug", "info", "warn", "error"}
	logFormats = []string{"auto", "console", "json"}
)

func defaultLog() logSettings { return logSettings{Level: "info", Format: "auto"} }

func (s logSettings) Validate() error {
	if _, err := zapcore.ParseLevel(s.Level); err != nil || s.Level == "" {
		return fmt.Errorf("level: got %q: use debug, info, warn or error", s.Level)
	}
	switch s.Format {
	case "auto", "console", "json":
		return nil
	}
	return fmt.Errorf("format: got %q: use auto, console or json", s.Format)
}

// newLogger logs to standard error, from the level on, which may be changed.
// Settings that are not valid are an error.
func newLogger(s logSettings) (*zap.Logger, zap.AtomicLevel, error) {
	if err := s.Validate(); err != nil {
		return nil, zap.AtomicLevel{}, usageError{fmt.Errorf("log.%w", err)}
	}
	level, err := zap.ParseAtomicLevel(s.Level)
	if err != nil {
		return nil, level, usageError{err}
	}
	var encoder zapcore.Encoder
	if s.Format == "console" || s.Format == "auto" && term.IsTerminal(int(os.Stderr.Fd())) {
		c := zap.NewDevelopmentEncoderConfig()
		c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		c.EncodeLevel = zapcore.CapitalColorLevelEncoder
		c.CallerKey = zapcore.OmitKey
		encoder = zapcore.NewConsoleEncoder(c)
	} else {
		c := zap.NewProductionEncoderConfig()
		c.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		c.EncodeDuration = zapcore.StringDurationEncoder
		c.TimeKey = "time"
		encoder = zapcore.NewJSONEncoder(c)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), level)), level, nil
}
