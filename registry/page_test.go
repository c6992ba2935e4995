package registry_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/registry"
)

// A host in another language has only docs/protocol/hosts.md: the messages there, sent without this
// package, make a node that callers find, with tools that are described, until it leaves.
func TestMessagesOfThePageMakeANode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/protocol/hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```json\n(.*?)\n```").FindAllSubmatch(page, -1)
	if len(blocks) != 3 {
		t.Fatalf("the page has %d messages: want a lease, a record of tools and a descriptor", len(blocks))
	}
	lease, tools, descriptor := blocks[0][1], blocks[1][1], blocks[2][1]
	// A field of a later version counts in the digest.
	descriptor = append(bytes.TrimSuffix(descriptor, []byte("}")), `,"later":{"z":1.0,"a":"ü<"}}`...)
	digest := digestOfPage(t, descriptor)
	tools = bytes.Replace(tools, []byte("…"), []byte(digest), 1)

	s := meshtest.Broker(t)
	b := ready(t, s.Connect(t))
	nc := s.Connect(t)
	put := func(subject string, body []byte, header nats.Header) string {
		t.Helper()
		answer, err := nc.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: body}, 10*time.Second)
		var ack struct {
			Seq   json.Number     `json:"seq"`
			Error json.RawMessage `json:"error"`
		}
		if err != nil || json.Unmarshal(answer.Data, &ack) != nil || ack.Error != nil {
			t.Fatalf("%s: %v %s", subject, err, ack.Error)
		}
		return ack.Seq.String()
	}
	at := put("$KV.MESH_NODES.gpu-1", lease, nats.Header{"Nats-TTL": {"10s"}, "Nats-Expected-Last-Subject-Sequence": {"0"}})
	at = put("$KV.MESH_NODES.gpu-1", lease, nats.Header{"Nats-TTL": {"10s"}, "Nats-Expected-Last-Subject-Sequence": {at}})
	beat(t, b, "gpu-1", "5f0c", 0)
	put("$KV.MESH_SCHEMAS."+digest, descriptor, nil)
	put("$KV.MESH_TOOLS.gpu-1.=.i.vision", tools, nil)

	v := view(t, open(t, s.Connect(t)))
	if got := nodesOf(v, "s", "vision.boxes.find"); got != "gpu-1/5f0c " {
		t.Fatalf("the tool's nodes are %q", got)
	}
	route, _ := v.Route("s", "vision.boxes.find")
	records, err := registry.NewStore(b)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := records.Descriptor(t.Context(), route.Digest); err != nil || d.Description != "Finds boxes." || !d.Annotations.Idempotent || d.Check() != nil {
		t.Errorf("the descriptor is %+v, %v", d, err)
	}
	put("$KV.MESH_TOOLS.gpu-1.=.i.vision", nil, nats.Header{"KV-Operation": {"PURGE"}})
	put("$KV.MESH_NODES.gpu-1", nil, nats.Header{"KV-Operation": {"PURGE"}, "Nats-Expected-Last-Subject-Sequence": {at}})
	meshtest.Until(t, "the node has left", func() bool { return nodesOf(v, "s", "vision.boxes.find") == "unknown" && len(v.Nodes()) == 0 })
}

// digestOfPage makes the digest as the page describes it, without package tool.
func digestOfPage(t *testing.T, descriptor []byte) string {
	t.Helper()
	read := json.NewDecoder(bytes.NewReader(descriptor))
	read.UseNumber()
	var value any
	var canonical bytes.Buffer
	write := json.NewEncoder(&canonical) // sorts keys
	write.SetEscapeHTML(false)
	if err := read.Decode(&value); err != nil {
		t.Fatal(err)
	}
	if err := write.Encode(value); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(canonical.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:])
}
