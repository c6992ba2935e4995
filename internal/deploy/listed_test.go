package deploy_test

import (
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh/internal/deploy"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

func (i *instance) Descriptors() []*tool.Descriptor {
	var all []*tool.Descriptor
	for _, name := range i.build.Manifest.Tools {
		if id := subjects.ToolID(string(i.build.Name) + "." + name); !strings.HasSuffix(name, ".broken") {
			all = append(all, &tool.Descriptor{ID: id, Name: string(id), Source: tool.SourceStatic})
		}
	}
	return all
}

// The record of an index lists its tools, for as long as no node serves them.
func TestTheRecordListsTheTools(t *testing.T) {
	t.Parallel()
	n := start(t, meshtest.Broker(t), "")
	url, _ := source(t, "idx")
	last := n.mustInstall(t, deploy.Request{Source: url})
	record := n.record(t, "idx")
	if len(record.Tools) == 0 || len(record.Tools) != len(last.Tools) {
		t.Fatalf("the record lists %+v, installed are %v", record.Tools, last.Tools)
	}
	for _, one := range record.Tools {
		if d, err := n.store.Descriptor(t.Context(), one.Digest); err != nil || d.ID != one.ID {
			t.Errorf("%+v: %v %v", one, d, err)
		}
	}
}
