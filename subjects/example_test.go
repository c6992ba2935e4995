package subjects_test

import (
	"fmt"

	"github.com/toolmesh/toolmesh/subjects"
)

func ExampleTool() {
	subject, err := subjects.Tool("default", "weather.forecast.today")
	fmt.Println(subject, err)
	subject, err = subjects.Tool("Émile's chat", "search") // other characters are encoded
	fmt.Println(subject, err)
	// Output:
	// tools.default.weather.forecast.today <nil>
	// tools.x--oe4mqqbcckjn6833d1gn8.search <nil>
}

func ExampleParse() {
	s, err := subjects.Parse("mesh.node.gpu-1.tools.default.weather.forecast.today")
	fmt.Println(s.Node, s.Session, s.Tool, err)
	_, err = subjects.Parse("tools.default")
	fmt.Println(err != nil)
	// Output:
	// gpu-1 default weather.forecast.today <nil>
	// true
}

func ExampleReplyAllowed() {
	fmt.Println(subjects.ReplyAllowed("_INBOX.abc.1", "default", false))
	fmt.Println(subjects.ReplyAllowed("$JS.API.STREAM.DELETE.orders", "default", false)) // a server that answers anything is everybody's deputy
	// Output:
	// true
	// false
}
