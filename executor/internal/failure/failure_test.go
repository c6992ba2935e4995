package failure

import (
	"runtime"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
)

// An error that code of an index writes itself takes no many times its size.
func TestErrorsOfAWorkerAreBounded(t *testing.T) {
	body := []byte(`{"code":"tool_error","details":{"much":[` + strings.Repeat("0,", 2<<20) + `0]}}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := FromWorker(body)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(body)) || err.Code != toolmesh.CodeInternal {
		t.Errorf("%d KiB take %d KiB: %s", len(body)>>10, took>>10, err.Code)
	}
}
