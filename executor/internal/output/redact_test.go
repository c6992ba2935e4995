package output

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The agent tells a worker the forms that python/tests/test_redaction.py tests from the same file.
func TestFormsOfSecrets(t *testing.T) {
	t.Parallel()
	var recorded struct {
		Secrets []string `json:"secrets"`
		Forms   *Forms   `json:"forms"`
	}
	data, err := os.ReadFile("testdata/forms.json")
	if err == nil {
		err = json.Unmarshal(data, &recorded)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := NewRedactor(recorded.Secrets)
	if diff := cmp.Diff(recorded.Forms, r.Forms()); diff != "" {
		t.Errorf("forms (-recorded +made):\n%s", diff)
	}
	for _, text := range []string{
		"tok-5f3a9c0e", `{"a": "\"t\u00f6k\\en&=\u20ac"}`, `'"tök\\\\en&=€'`, "?t=%22t%C3%B6k%5Cen%26%3D%E2%82%AC", "q7z!",
	} {
		if found := r.Text(text); strings.Contains(found, "tok") || strings.Contains(found, "en") || strings.Contains(found, "q7z") {
			t.Errorf("%s is left as %s", text, found)
		}
	}
	if found := NewRedactor(nil).Forms(); found != nil {
		t.Errorf("without secrets: %v", found)
	}
}

// A text is redacted as by the whole pattern, of which the agent compiles only the parts that may match.
func TestRedactionIsThatOfTheWholePattern(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{"tok-5f3a9c0e", "5f3a9c0e~", "ab", "a+", `{"a":"tok-5f3a9c0e/tail","b":"another-one"}`, "first-line\nsecond-line"})
	whole := regexp.MustCompile(r.Forms().Pattern)
	pieces := append([]string{" ", "a", "b", "+", "/", "_", "\n", "tok-", "5f3a"}, r.Forms().Texts...)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	for range 5000 {
		var text strings.Builder
		for range 1 + random.IntN(6) {
			piece := pieces[random.IntN(len(pieces))]
			from := random.IntN(2) * random.IntN(len(piece))
			text.WriteString(piece[from : from+1+random.IntN(len(piece)-from)])
		}
		want := whole.ReplaceAllLiteralString(text.String(), mark)
		if got := r.Text(text.String()); got != want {
			t.Fatalf("%q becomes %q, want %q", text.String(), got, want)
		}
	}
}

// The password of a proxy may be percent-encoded bytes of another encoding.
func TestSecretThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	r := NewRedactor([]string{"pass\xe4word"})
	for _, text := range []string{"pass\xe4word", "pass\uFFFDword", "pass%E4word"} {
		if got := r.Text("<" + text + ">"); got != "<***>" {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}
