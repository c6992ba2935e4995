package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/tool"
)

// putFiles uploads the files that k=PATH names, where the tool's schema has a file.
func (l *link) putFiles(ctx context.Context, g given, schema json.RawMessage) (given, error) {
	g.pairs = slices.Clone(g.pairs)
	for i, p := range g.pairs {
		if p.raw || !tool.TakesFile(schema, p.name) {
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

// save writes a result. Of a result that is a file it writes the bytes.
func (l *link) save(ctx context.Context, result *client.Result, to io.Writer) error {
	if file, ok := tool.AsFile(result.Value); ok && result.Ref == nil {
		return l.client.GetFile(ctx, file, to)
	}
	err := l.client.WriteResult(ctx, result, to)
	if err == nil {
		_, err = io.WriteString(to, "\n")
	}
	return err
}

// replace writes a file. An existing file is replaced once all is written; it keeps its mode and
// its owner. A link is followed. A device or a pipe is written to directly. A new file gets its
// mode from the umask.
func replace(path string, write func(io.Writer) error) (err error) {
	there, err := os.OpenFile(path, os.O_WRONLY, 0) //nolint:gosec // the person's own choice
	var before os.FileInfo
	switch {
	case err == nil:
		defer func() { _ = there.Close() }()
		if before, err = there.Stat(); err == nil && !before.Mode().IsRegular() {
			return write(there)
		}
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
	case errors.Is(err, os.ErrNotExist):
		if _, link := os.Lstat(path); link != nil { // else a dangling link
			err = nil
		}
	}
	if err != nil {
		return cannotWrite(err)
	}
	mode := os.FileMode(0o666)
	if before != nil {
		mode = 0o600
	}
	part, err := os.OpenFile(path+"."+rand.Text()[:8]+".part", os.O_RDWR|os.O_CREATE|os.O_EXCL, mode) //nolint:gosec // likewise
	if err != nil {
		return cannotWrite(err)
	}
	defer func() {
		_ = part.Close()
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	if err := write(part); err != nil {
		return err
	}
	if before != nil {
		if owner, ok := before.Sys().(*syscall.Stat_t); ok && part.Chown(int(owner.Uid), int(owner.Gid)) != nil {
			// A file of another user that this user may write to.
			if _, err = part.Seek(0, io.SeekStart); err == nil {
				err = there.Truncate(0)
			}
			if err == nil {
				_, err = io.Copy(there, part)
			}
			if err = errors.Join(err, os.Remove(part.Name())); err != nil {
				return cannotWrite(err)
			}
			return nil
		}
		err = part.Chmod(before.Mode().Perm())
	}
	if err == nil {
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
