package tool

import (
	"encoding/json"
	"slices"
)

// FileFormat is the format of a schema whose value is a [File].
const FileFormat = "mesh-file"

// File is an argument or result that is a file of any size: on the wire it is a reference to its
// bytes in the mesh's object store. A client uploads and downloads it by path, see
// client.PutFile. Paths do not travel. A function with a File in its arguments reads it with a
// client of the call's session.
type File struct {
	Ref    string `json:"$file"` // <session>.<anything>
	Digest string `json:"digest"`
	Size   int64  `json:"size,omitempty"`
	Name   string `json:"name,omitempty"` // the file's own, without a folder
	Type   string `json:"type,omitempty"` // content type
}

// AsFile reads a value that is a File, and reports whether it is one.
func AsFile(value json.RawMessage) (File, bool) {
	var f File
	if len(value) > 64<<10 || json.Unmarshal(value, &f) != nil {
		return f, false
	}
	return f, f.Ref != "" && f.Digest != ""
}

// TakesFile reports whether a parameter of an input schema is a [File], or may be one.
func TakesFile(schema json.RawMessage, name string) bool {
	type part struct {
		Format string `json:"format"`
		AnyOf  []part `json:"anyOf"`
	}
	var object struct {
		Properties map[string]part `json:"properties"`
	}
	if json.Unmarshal(schema, &object) != nil {
		return false
	}
	isFile := func(p part) bool { return p.Format == FileFormat }
	parameter := object.Properties[name]
	return isFile(parameter) || slices.ContainsFunc(parameter.AnyOf, isFile)
}
