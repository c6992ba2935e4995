package venv

import (
	"strings"
	"testing"
)

// What failed and why stand at the ends of what a build prints; neither stands in
// the midst of a stack trace.
func TestAFailureShowsHowItBeganAndHowItEnded(t *testing.T) {
	t.Parallel()
	said := "× Failed to build x\n" + strings.Repeat("  File \"y.py\", line 1, in run\n", 500) + "LookupError: no version\n\nhint: set one"
	err := failed(nil, said, "the dependencies cannot be resolved")
	for _, want := range []string{"× Failed to build x", "LookupError: no version", "hint: set one"} {
		if !strings.Contains(err.Message, want) || !strings.Contains(err.Details["stderr"].(string), want) {
			t.Errorf("%q is not in\n%s\nor not in\n%s", want, err.Message, err.Details["stderr"])
		}
	}
	if lines := strings.Count(err.Message, "\n") + 1; lines > 12 {
		t.Errorf("the message has %d lines", lines)
	}
}
