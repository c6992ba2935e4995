package executor_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/tool"
)

// New refuses an option that is out of range, by its name.
func TestOptionsOutOfRange(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]executor.Options{
		"Options.Grace":             {Grace: -1},
		"Options.StartTimeout":      {StartTimeout: -1},
		"Options.MaxWorkers":        {MaxWorkers: -1},
		"Options.MaxSessions":       {MaxSessions: -1},
		"Options.SessionIdle":       {SessionIdle: -1},
		"Options.SessionHold":       {SessionHold: -1},
		"Options.IdleAfter":         {IdleAfter: -1},
		"Options.CrashLimit":        {CrashLimit: -1},
		"Options.CrashWindow":       {CrashWindow: -1},
		"Options.TrialEvery":        {TrialEvery: -1},
		"Options.MaxResult":         {MaxResult: -1},
		"Options.Limits: limits":    {Limits: tool.Limits{Memory: -1}},
		"Options.MaxLimits: limits": {MaxLimits: tool.Limits{Pids: -1}},
		"Options.Sandbox":           {Sandbox: "jail"},
	} {
		x, err := executor.New(t.TempDir(), &o)
		if err == nil {
			_ = x.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
