package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// binaries is programs of the product, linked statically.
// Neither the folder of the sources nor this machine's settings of Go leave a trace in them.
func (b *build) binaries(ctx context.Context, names ...string) (tree, error) {
	to := make(tree)
	folder, err := os.MkdirTemp("", "mesh-images-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is of the temporary folder
	for _, name := range names {
		fmt.Fprintf(b.log, "build %s for linux/%s\n", name, b.arch)
		file := filepath.Join(folder, name)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", file,
			"-ldflags", "-s -w -X main.version="+b.version+" -X main.commit="+b.commit, "./cmd/"+name)
		cmd.Dir, cmd.Stderr = b.root, b.log
		cmd.Env = append(append(os.Environ(), "GOOS=linux", "GOARCH="+b.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
			"GOEXPERIMENT=", "GOWORK=off", "GOFLAGS=-buildvcs=false"), b.environ...)
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		to.file("usr/bin/"+name, 0o755, data)
	}
	return to, nil
}

// router is the image of the router: nothing in it but what it needs.
func (b *build) router(ctx context.Context) (*image, error) {
	t, err := b.routerTree(ctx)
	if err != nil {
		return nil, err
	}
	return b.image(routerAbout, namedLayer{t, "mesh-router, CA certificates"})
}

func (b *build) routerTree(ctx context.Context) (tree, error) {
	t, err := b.binaries(ctx, "mesh-router")
	if err != nil {
		return nil, err
	}
	roots, err := authorities()
	if err != nil {
		return nil, err
	}
	t.file("etc/passwd", 0o644, []byte("root:x:0:0::/:/usr/sbin/nologin\n"+passwd))
	t.file("etc/group", 0o644, []byte("root:x:0:\n"+group))
	t.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots)
	t.folder(home[1:], 0o750)
	t.add("tmp", &node{kind: tar.TypeDir, mode: sticky | 0o777})
	return t, nil
}

// authorities are the certificates of the authorities that Mozilla trusts, as PEM. Those of
// this machine are no source: it may trust some that nobody else should. Authorities that are
// trusted with a condition are left out: PEM has no way to say it.
func authorities() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// context writes what the Containerfiles copy: the product's own files.
func (b *build) context(ctx context.Context, folder string) error {
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755)); err != nil {
		return err
	}
	router, err := b.routerTree(ctx)
	if err != nil {
		return err
	}
	agent, err := b.binaries(ctx, "mesh", "mesh-agent")
	if err != nil {
		return err
	}
	// Containerfiles give owners by instruction, and only to what is in the folder that is copied.
	homes := make(tree)
	homes[path.Base(home)] = router[home[1:]]
	delete(router, home[1:])
	for name, t := range map[string]tree{"router": router, "agent": agent, "home": homes} {
		if err := errors.Join(os.Mkdir(filepath.Join(folder, name), 0o755), t.unpack(filepath.Join(folder, name))); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(folder, "uv.txt"), uvRequirements, 0o644)
}
