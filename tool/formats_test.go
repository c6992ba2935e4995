package tool_test

import (
	"encoding/json"
	"fmt"
	"testing"
)

func TestTimesMayLackTheirOffset(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		format, text string
		fits         bool
	}{
		{"date-time", "2026-01-31T12:00:00Z", true},
		{"date-time", "2026-01-31T12:00:00.123456+02:00", true},
		{"date-time", "2026-01-31T12:00:00", true},
		{"date-time", "2026-01-31 12:00", true},
		{"date-time", "2026-01-31t12:00:00z", true},
		{"date-time", "2026-01-31", false},
		{"date-time", "2026-02-30T12:00:00Z", false},
		{"date-time", "2026-01-31T25:00:00Z", false},
		{"date-time", "2026-01-31T12:00:00+2", false},
		{"date-time", "2026-01-31T", false},
		{"date-time", "tomorrow", false},
		{"time", "12:30:00", true},
		{"time", "12:30", true},
		{"time", "12:30:00.5Z", true},
		{"time", "24:00:00", false},
		{"time", "12", false},
		{"regex", `(?<=a)b`, true},
	} {
		v := compile(t, `{"type":"object","properties":{"x":{"type":"string","format":"`+tt.format+`"}}}`)
		text, err := json.Marshal(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Validate(json.RawMessage(fmt.Sprintf(`{"x":%s}`, text))); (err == nil) != tt.fits {
			t.Errorf("%s %q: %v, want fits %v", tt.format, tt.text, err, tt.fits)
		}
	}
}
