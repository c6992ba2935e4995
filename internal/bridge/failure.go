package bridge

import (
	"cmp"
	"encoding/json"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/tool"
)

// toolCodes are the codes that a program's tool may fail with. The others are the mesh's.
var toolCodes = map[toolmesh.Code]bool{
	toolmesh.CodeToolError: true, toolmesh.CodeInvalidArguments: true, toolmesh.CodeResultNotSerializable: true,
	toolmesh.CodePayloadTooLarge: true, toolmesh.CodeDeadlineExceeded: true, toolmesh.CodeCancelled: true,
	toolmesh.CodeBusy: true, toolmesh.CodeUnavailable: true,
}

// readFailure reads the error of a program's tool.
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

// writeFailure encodes an error for the program. Without an exception's class the type is the code.
func writeFailure(err error) []byte {
	e := *toolmesh.AsError(err)
	e.Type = cmp.Or(e.Type, string(e.Code))
	data, bad := tool.MarshalPlain(&e)
	if bad != nil { // a detail that cannot be encoded
		e.Details = nil
		data, _ = tool.MarshalPlain(&e)
	}
	return data
}

// The errors of calls that the program's end interrupts, or that it can no longer get.
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
