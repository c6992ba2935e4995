package zygote

import (
	"encoding/json"
	"strings"
	"testing"
)

// Code of an index may have written a description: its lists take no more memory than those of the
// most tools.
func TestListsOfADescriptionAreBounded(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"tools", "unavailable"} {
		var d description
		err := json.Unmarshal([]byte(`{"`+list+`":[`+strings.Repeat("{},", 200_000)+`{}]}`), &d)
		if err == nil || !strings.Contains(err.Error(), "more than 65536 tools") || len(d.Tools)+len(d.Unavailable) > 65536 {
			t.Errorf("%s: %d and %d are read, %v", list, len(d.Tools), len(d.Unavailable), err)
		}
	}
}
