package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/tool"
)

// putFiles sends the files that k=PATH names, where the tool's schema has a file.
func (l *link) putFiles(ctx context.Context, g given, schema json.RawMessage) (given, error) {
	g.pairs = slices.Clone(g.pairs)
	for i, p := range g.pairs {
		if p.raw || !takesFile(schema, p.name) {
			continue
		}
		file, err := l.client.PutFile(ctx, p.text)
		if err != nil {
			if toolmesh.CodeOf(err) == toolmesh.CodeInvalidArguments {
				return g, usage(nil, "%s=%s: %s", p.name, p.text, toolmesh.AsError(err).Message)
			}
			return g, err
		}
		g.pairs[i].text, g.pairs[i].raw = compact(file), true
	}
	return g, nil
}

// takesFile reports whether a parameter is a file, or may be one.
func takesFile(schema json.RawMessage, name string) bool {
	type part struct {
		Format string `json:"format"`
		AnyOf  []struct {
			Format string `json:"format"`
		} `json:"anyOf"`
	}
	var object struct {
		Properties map[string]part `json:"properties"`
	}
	if json.Unmarshal(schema, &object) != nil {
		return false
	}
	parameter := object.Properties[name]
	if parameter.Format == tool.FileFormat {
		return true
	}
	for _, one := range parameter.AnyOf {
		if one.Format == tool.FileFormat {
			return true
		}
	}
	return false
}

// save writes a result to a file: that of a file its bytes. What is there is replaced, once
// all of it has come.
func (l *link) save(ctx context.Context, result *client.Result, path string) (err error) {
	part, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.part")
	if err != nil {
		return cannotWrite(err)
	}
	defer func() {
		_ = part.Close()
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	if file, ok := tool.AsFile(result.Value); ok && result.Ref == nil {
		err = l.client.GetFile(ctx, file, part)
	} else if err = l.client.WriteResult(ctx, result, part); err == nil {
		_, err = part.WriteString("\n")
	}
	if err != nil {
		return err
	}
	if err = part.Chmod(0o644); err == nil {
		err = part.Close()
	}
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		return cannotWrite(err)
	}
	return nil
}

func cannotWrite(err error) error {
	return usage(nil, "the result cannot be written: %s", err.Error())
}
