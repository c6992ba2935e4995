package process

import "github.com/toolmesh/toolmesh"

// Exit statuses of all three binaries.
const (
	StatusOK          = 0
	StatusFailed      = 1   // the tool or its arguments failed
	StatusUsage       = 2   // wrong usage
	StatusMesh        = 3   // the mesh failed or does not exist
	StatusInterrupted = 130 // ended by a signal
)

// Status returns the exit status of a failure.
func Status(code toolmesh.Code) int {
	switch code {
	case "":
		return StatusOK
	case toolmesh.CodeToolError, toolmesh.CodeInvalidArguments, toolmesh.CodeResultNotSerializable,
		toolmesh.CodeDeadlineExceeded, toolmesh.CodeCancelled, toolmesh.CodePayloadTooLarge,
		toolmesh.CodeInstallFailed, toolmesh.CodeWorkerCrashed, toolmesh.CodeWorkerOutOfMemory:
		return StatusFailed
	}
	return StatusMesh
}
