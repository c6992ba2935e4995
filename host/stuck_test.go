package host

import (
	"strings"
	"testing"
	"time"
)

// A host is stuck once its clock has stood for longer than a connection that nobody
// reads can hold it up; one that does not run is not.
func TestStuck(t *testing.T) {
	t.Parallel()
	h := &Host{}
	if err := h.Stuck(); err != nil {
		t.Errorf("before the start: %v", err)
	}
	for stood, want := range map[time.Duration]bool{0: false, time.Minute: false, stuckAfter + 2*time.Second: true} {
		at := time.Now().Add(-stood)
		h.ticked.Store(&at)
		if err := h.Stuck(); (err != nil) != want || want && !strings.Contains(err.Error(), "has stood for 3m2s") {
			t.Errorf("the clock has stood for %v: %v", stood, err)
		}
	}
}
