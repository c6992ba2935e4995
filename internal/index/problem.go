package index

import (
	"strings"

	"github.com/toolmesh/toolmesh"
)

// Reasons are the values of details.reason, for programs.
const (
	reasonSource      = "bad_source"
	reasonManifest    = "bad_manifest"
	reasonConvention  = "unsupported_convention"
	reasonGitMissing  = "git_missing"
	reasonGit         = "git_failed"
	reasonUnreachable = "unreachable"
	reasonDenied      = "access_denied"
	reasonRevision    = "unknown_revision"
	reasonTimeout     = "timeout"
	reasonTooLarge    = "too_large"
	reasonUnsafe      = "unsafe_content"
	reasonFolder      = "bad_folder"
	reasonBundle      = "bad_bundle"
	reasonExists      = "exists"
	reasonPrivate     = "private_source"
)

// failed makes the one error of this package.
func failed(reason, format string, args ...any) *toolmesh.Error {
	return toolmesh.Errorf(toolmesh.CodeInstallFailed, format, args...).WithDetail("reason", reason)
}

// namedInWarning is how many files or folders a warning names.
const namedInWarning = 20

// some joins the first n of names for a message.
func some(names []string, n int) string {
	if len(names) > n {
		return strings.Join(names[:n], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// Limits bound fetching, packing and unpacking.
type Limits struct {
	Bytes int64 // of all files together
	Files int
}

var defaultLimits = Limits{Bytes: 512e6, Files: 50_000}
