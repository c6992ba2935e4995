package bus

import "testing"

func TestVersionsAreSemantic(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"": "0.0.0", "1.2.3": "1.2.3", "v1.2.3-rc.1": "1.2.3-rc.1", "e6bc9f2": "0.0.0+e6bc9f2",
		"9f3a1b2-dirty": "0.0.0+9f3a1b2-dirty", "dev": "0.0.0+dev", "01.2.3": "0.0.0+01-2-3", "v1.0.0-3-gabcdef0": "1.0.0-3-gabcdef0",
	} {
		if got := semantic(version); got != want {
			t.Errorf("semantic(%q) = %q, want %q", version, got, want)
		}
	}
}
