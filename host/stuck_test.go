package host

import (
	"strings"
	"testing"
	"time"
)

// A host is stuck once its ticker has been blocked for longer than an unread connection can block
// it; a host that does not run is not stuck.
func TestStuckHandlerMakesTheNodeUnready(t *testing.T) {
	t.Parallel()
	h := &Host{}
	if err := h.Stuck(); err != nil {
		t.Errorf("before the start: %v", err)
	}
	for stood, want := range map[time.Duration]bool{0: false, time.Minute: false, stuckAfter + 2*time.Second: true} {
		at := time.Now().Add(-stood)
		h.ticked.Store(&at)
		if err := h.Stuck(); (err != nil) != want || want && !strings.Contains(err.Error(), "blocked for 3m2s") {
			t.Errorf("the clock has stood for %v: %v", stood, err)
		}
	}
}
