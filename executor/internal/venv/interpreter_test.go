package venv

import (
	"strings"
	"testing"
)

func TestConstraints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		constraint, version string
		want                bool
	}{
		{"", "3.10.1", true},
		{">=3.11", "3.11.0", true},
		{">=3.11", "3.10.9", false},
		{">=3.10,<3.13", "3.12.7", true},
		{">=3.10,<3.13", "3.13.0", false},
		{">=3.10, <3.13", "3.13.0", false},
		{"==3.12.*", "3.12.9", true},
		{"==3.12.*", "3.1.2", false},
		{"3.12", "3.12.9", true},
		{"3.12", "3.13.0", false},
		{"==3.12", "3.12.0", true},
		{"==3.12", "3.12.1", false},
		{"!=3.12.*", "3.12.1", false},
		{"!=3.12.1", "3.12.2", true},
		{"~=3.11", "3.13.0", true},
		{"~=3.11", "3.10.0", false},
		{"~=3.11.2", "3.11.9", true},
		{"~=3.11.2", "3.12.0", false},
		{"^3.11", "3.13.0", true},
		{"^3.11", "4.0.0", false},
		{">3.11", "3.11.5", true},
		{"<=3.12", "3.12.0", true},
		{">=3.12.0rc1", "3.12.0", true},
		{">= 3.9.*", "3.12.0", true},
		{"3.12.*", "3.12.7", true},
		{"===3.12.1", "3.12.1", true},
		{"~3.11", "3.11.9", true},
		{"~3.11", "3.12.0", false},
		{"~3", "3.12.0", true},
		{"~3.11.2", "3.11.1", false},
		{"~3.11.2", "3.11.9", true},
		{"*", "3.12.0", true},
		{">=3.10,==3.*", "3.12.0", true},
		{">=3.10,!=3.11.*,", "3.11.1", false},
	} {
		parsed, err := parseConstraint(c.constraint)
		if err != nil {
			t.Errorf("%q: %v", c.constraint, err)
			continue
		}
		if got := parsed.allows(c.version); got != c.want {
			t.Errorf("%q allows %s: got %v, want %v", c.constraint, c.version, got, c.want)
		}
	}
	for _, text := range []string{"three", ">=", "~=3", ">=x.y", strings.Repeat(">=3,", maxConstraint/4) + ">=3"} {
		if _, err := parseConstraint(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

// The Python that a lock is made for is the lowest that the declaration allows.
func TestLowestPython(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": oldest, ">=3.8": oldest, ">=3.11": 11, ">3.11": 11, "==3.12.4": 12, "3.12": 12, "^3.11": 11, "<3.13": oldest, "!=3.10.*": 11, ">=3.99": oldest,
	} {
		wanted, err := parseConstraint(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := wanted.lower(); got != want {
			t.Errorf("%q: 3.%d, want 3.%d", text, got, want)
		}
	}
}

// A constraint is an author's text.
func FuzzConstraints(f *testing.F) {
	for _, text := range []string{"", ">=3.11,<4", "!=3.12.*", "~=3.11.2", "^3.11", "~3.11", "*", "===3.12.1", ">=3.12.0rc1", "1!3.11+local.1", ">=3.9.*", "<3.dev1,>3.post2", "==99999999999999999999.*", "!=*", "∞"} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		if parsed, err := parseConstraint(text); err == nil {
			_ = parsed.lower()
		}
	})
}
