package render_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolmesh/toolmesh/tool"
	"github.com/toolmesh/toolmesh/tool/render"
)

func ExampleTool() {
	rendered, err := render.Tool(render.Anthropic, &tool.Descriptor{
		ID:          "weather.today",
		Description: "The weather of a city.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(rendered.JSON))
	// Output: {"name":"weather-today","description":"The weather of a city.","input_schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}
}

// A model wrote a number as text.
func ExampleArguments() {
	arguments, changed, err := render.Arguments(&tool.Descriptor{
		ID:          "lab.wait",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"seconds":{"type":"integer"}}}`),
	}, json.RawMessage(`{"seconds":"5"}`))
	fmt.Println(string(arguments), changed, err)
	// Output: {"seconds":5} [/seconds: the text "5" was read as 5] <nil>
}
