package tool_test

import (
	"testing"

	"github.com/toolmesh/toolmesh/tool"
)

func TestWholeNumber(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "7": "7", "-7": "-7", "3.0": "3", "2e9": "2000000000", "1.5E+1": "15", "20e-1": "2", "-4.000": "-4", "9007199254740993": "9007199254740993",
		"": "", "3.5": "", "1e-1": "", "1e1000": "", "1/2": "", "0x10": "", "01": "", "1_000": "", "+1": "", "NaN": "", " 1": "", ".5": "",
	} {
		got, ok := tool.WholeNumber(text)
		if ok != (want != "") || string(got) != want {
			t.Errorf("%q is %q, %t, want %q", text, got, ok, want)
		}
	}
}
