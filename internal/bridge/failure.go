package bridge

import (
	"cmp"
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// toolCodes are the codes that a program's tool may fail with. The others speak of the
// mesh.
var toolCodes = map[toolmesh.Code]bool{
	toolmesh.CodeToolError: true, toolmesh.CodeInvalidArguments: true, toolmesh.CodeResultNotSerializable: true,
	toolmesh.CodePayloadTooLarge: true, toolmesh.CodeDeadlineExceeded: true, toolmesh.CodeCancelled: true,
	toolmesh.CodeBusy: true, toolmesh.CodeUnavailable: true,
}

// readFailure is the error that a program's tool failed with.
func readFailure(raw []byte) *toolmesh.Error {
	e := new(toolmesh.Error)
	if err := json.Unmarshal(raw, e); err != nil || absent(raw) {
		message, ok := text(raw)
		if !ok {
			message = "the program reported a failure that cannot be read: " + string(raw[:min(len(raw), 200)])
		}
		e = &toolmesh.Error{Message: message}
	}
	if said := e.Code; !toolCodes[said] {
		if said != "" {
			e = e.WithDetail("code", string(said))
		}
		e.Code = toolmesh.CodeToolError
	}
	e.Origin = toolmesh.OriginWorker
	if e.Code == toolmesh.CodeToolError || e.Code == toolmesh.CodeResultNotSerializable {
		e.Origin = toolmesh.OriginTool
	}
	if e.Code == toolmesh.CodeBusy || e.Code == toolmesh.CodeUnavailable {
		e.Retryable = true
	}
	return e
}

// writeFailure is an error as the program reads it: one without an exception's class
// has its code as type.
func writeFailure(err error) []byte {
	e := *toolmesh.AsError(err)
	e.Type = cmp.Or(e.Type, string(e.Code))
	data, bad := tool.MarshalPlain(&e)
	if bad != nil { // a detail of ours
		e.Details = nil
		data, _ = tool.MarshalPlain(&e)
	}
	return data
}

// The errors of calls that the program's end cuts off, or that it cannot get any more.
var (
	errCrashed = toolmesh.Errorf(toolmesh.CodeWorkerCrashed, "the program that ran the tool ended during the call").WithOrigin(toolmesh.OriginWorker)
	errGone    = toolmesh.Errorf(toolmesh.CodeUnavailable, "the program that ran the tool is gone").
			WithOrigin(toolmesh.OriginWorker).WithStarted(toolmesh.StartedNo)
	errDraining = toolmesh.Errorf(toolmesh.CodeUnavailable, "the bridge is draining: only calls that belong to one that it serves are made").
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
	errCancelled   = toolmesh.Errorf(toolmesh.CodeCancelled, "the program cancelled the call").WithOrigin(toolmesh.OriginCaller)
	errEnded       = toolmesh.Errorf(toolmesh.CodeCancelled, "the bridge ended during the call").WithOrigin(toolmesh.OriginCaller)
	errParentEnded = toolmesh.Errorf(toolmesh.CodeCancelled, "the call that is named as parent is not being served").
			WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo).WithDetail("reason", "parent_ended")
)
