package tool_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolmesh/toolmesh/tool"
)

func ExampleFor() {
	type args struct {
		City string `json:"city"`
		Days int    `json:"days,omitempty"`
	}
	schema, err := tool.For[args]()
	fmt.Println(string(schema), err)
	// Output: {"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false} <nil>
}

func ExampleValidator_Validate() {
	v, err := tool.Compile(json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(v.Validate(json.RawMessage(`{"city":"Oslo"}`)))
	for _, p := range tool.Problems(v.Validate(json.RawMessage(`{"city":7}`))) {
		fmt.Println(p.Pointer, p.Message)
	}
	// Output:
	// <nil>
	// /city /city must be string, not number 7
}
