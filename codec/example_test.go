package codec_test

import (
	"fmt"

	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

// A node handles a message: read it, run the tool, write the answer.
func ExampleReadRequest() {
	subject, err := subjects.Parse("tools.default.weather.forecast.today")
	if err != nil {
		fmt.Println(err)
		return
	}
	req, failed := codec.ReadRequest(subject, codec.Header{"Mesh-Rpc-Id": {"rpc_1"}}, []byte(`{"city":"Oslo"}`))
	if failed == nil {
		failed = req.Decode() // of a body in msgpack, or compressed
	}
	if failed != nil {
		fmt.Println(failed)
		return
	}
	fmt.Println(req.RPCID, string(req.Body()))

	node := codec.NewIdentity("gpu-1", "boot-1", "v1")
	header, body := req.Result(node, []byte(`"clear sky"`), codec.Load{})
	fmt.Println(header.Get("Mesh-Rpc-Id"), header.Get("Mesh-Node"), string(body))
	// Output:
	// rpc_1 {"city":"Oslo"}
	// rpc_1 gpu-1 "clear sky"
}
