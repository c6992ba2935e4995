package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/toolmesh/toolmesh/tool"
)

// Survey is the result of the self-test: the levels that a machine supports.
type Survey struct {
	lacks map[tool.Sandbox]string
	alone bool // namespaces are missing, all other parts of strict are available
}

// Lacks returns why a level cannot be used here; empty if it can.
func (s Survey) Lacks(level tool.Sandbox) string {
	if why := s.lacks[level]; why != "" {
		return fmt.Sprintf("it demands the sandbox level %s, which this node does not have: %s", level, why)
	}
	return ""
}

// Effective is the tightest available level up to the asked one, and why it is not the asked
// one.
func (s Survey) Effective(asked tool.Sandbox) (effective tool.Sandbox, reasons []string) {
	sandboxes := tool.Sandboxes()
	at := slices.Index(sandboxes, asked)
	for ; at > 0; at-- {
		why := s.lacks[sandboxes[at]]
		if why == "" {
			return sandboxes[at], reasons
		}
		if len(reasons) == 0 || why != s.lacks[sandboxes[at+1]] { // already given for the tighter level
			reasons = append(reasons, fmt.Sprintf("sandbox level %s: %s", sandboxes[at], why))
		}
	}
	return tool.SandboxNone, reasons
}

// Held is the level that is applied to processes of an asked level: the effective one or,
// where only namespaces are missing, the parts of the asked one that need none.
func (s Survey) Held(asked tool.Sandbox) tool.Sandbox {
	effective, _ := s.Effective(asked)
	switch {
	case !s.alone:
		return effective
	case asked == tool.SandboxOffline: // offline is a network namespace
		return tool.SandboxStrict
	}
	return asked
}

// nowhere cannot be executed, which the system reports only after everything before worked.
const nowhere = os.DevNull + "/nothing"

// Survey tests the levels of the machine. It starts processes that end before they run
// anything; the result of the first call is kept.
func (s *Spawner) Survey() Survey {
	s.surveyed.Do(func() {
		s.survey.lacks = map[tool.Sandbox]string{}
		why := ""
		for _, level := range []tool.Sandbox{tool.SandboxGuard, tool.SandboxStrict, tool.SandboxOffline} {
			if why == "" { // a tighter level lacks the same
				why = s.lacking(level)
			}
			s.survey.lacks[level] = why
		}
		s.survey.alone = s.Level() == LevelReaper && restrictions() == ""
	})
	return s.survey
}

// lacking returns why the machine lacks a level whose looser ones it has.
func (s *Spawner) lacking(box tool.Sandbox) string {
	// Processes are kept together as for guard: without that, no level works.
	_, err := s.start(func(level Level) error {
		if level == LevelReaper {
			return nil
		}
		_, err := os.StartProcess(nowhere, []string{nowhere}, &os.ProcAttr{Sys: trial(level, box, s.all)})
		if errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return err
	}, box == tool.SandboxGuard)
	namespaces := "network"
	switch box {
	case tool.SandboxGuard:
		if err != nil {
			s.log.Error("no process can be started: tools cannot run", "error", err)
		}
		if s.Level() == LevelReaper {
			return "the system refuses PID namespaces, workers are kept together by a watching process instead"
		}
		return ""
	case tool.SandboxStrict:
		if why := restrictions(); why != "" {
			return why
		}
		namespaces = "mount, IPC and UTS"
	}
	if err != nil {
		return fmt.Sprintf("the system refuses %s namespaces: %v", namespaces, errors.Unwrap(err)) // of its *os.PathError
	}
	return ""
}
