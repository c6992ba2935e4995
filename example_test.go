package toolmesh_test

import (
	"errors"
	"fmt"

	"github.com/toolmesh/toolmesh"
)

// The code of an error says where to act: a tool that failed is no fault of the mesh.
func ExampleCodeOf() {
	err := fmt.Errorf("call billing.refund: %w", toolmesh.Errorf(toolmesh.CodeToolError, "more than 100 needs a person"))
	switch toolmesh.CodeOf(err) {
	case toolmesh.CodeToolError:
		fmt.Println("the tool failed:", toolmesh.AsError(err).Message)
	case "":
		fmt.Println("no error")
	default:
		fmt.Println("the mesh failed:", err)
	}
	fmt.Println(toolmesh.CodeOf(errors.New("of another package")))
	// Output:
	// the tool failed: more than 100 needs a person
	// internal
}

// Only an error with StartedNo permits sending a call again that is not idempotent.
func ExampleError() {
	err := toolmesh.Errorf(toolmesh.CodeBusy, "no slot is free").
		WithStarted(toolmesh.StartedNo).WithRetryable(true)
	fmt.Println(err.Code, err.Started == toolmesh.StartedNo, err.Retryable)
	// Output: busy true true
}
