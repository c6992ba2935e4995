package check

import (
	"regexp"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// fileStore reads max_file_store of a NATS server's configuration, in bytes.
func fileStore(t *testing.T, conf string) int64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^  max_file_store: (\d+)GB`).FindStringSubmatch(conf)
	if found == nil {
		t.Error("there is no max_file_store in GB")
		return 0
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 30 // as NATS counts
}

// diskOf is how much the volume of a StatefulSet's pods holds.
func diskOf(w Workload) int64 {
	return w.Typed.(*appsv1.StatefulSet).Spec.VolumeClaimTemplates[0].Spec.Resources.Requests.Storage().Value()
}
