package output

import (
	"encoding/json"
	"os"
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
