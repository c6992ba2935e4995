package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Common values of both images. The Containerfiles have the same; a test compares them.
const (
	userID   = 65532
	userName = "toolmesh"
	home     = "/home/toolmesh"
	passwd   = userName + ":x:65532:65532::" + home + ":/usr/sbin/nologin"
	group    = userName + ":x:65532:"
)

// about is the description of an image.
type about struct {
	title, description string
	env                []string
	entrypoint         []string
}

var routerAbout = about{
	title:       "mesh-router",
	description: "A router of a Toolmesh mesh",
	env:         []string{"PATH=/usr/bin", "HOME=" + home, "TMPDIR=/tmp"},
	entrypoint:  []string{"/usr/bin/mesh-router"},
}

// The agent's data folder is not below its home: without namespaces tools cannot make
// files in the folders above it (docs/tools.md). tini is process 1, because what a
// program of the agent's leaves behind has to be waited for, and the agent waits only
// for what it started.
var agentAbout = about{
	title:       "mesh-agent",
	description: "A Toolmesh agent, with Python, git and uv",
	env:         []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "TMPDIR=/tmp", "LANG=C.UTF-8", "MESH_DATA_DIR=/" + dataDir},
	entrypoint:  []string{"/usr/bin/tini", "--", "/usr/bin/mesh-agent"},
}

// image is an image by its name.
type image struct {
	v1.Image
	name string
}

// namedLayer is a layer with its description.
type namedLayer struct {
	v1.Layer
	what string
}

func (b *build) image(a about, layers ...namedLayer) (*image, error) {
	config := &v1.ConfigFile{
		Architecture: b.arch, OS: "linux", Created: v1.Time{Time: b.epoch},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: fmt.Sprintf("%d:%d", userID, userID), Env: a.env, Entrypoint: a.entrypoint, WorkingDir: home,
			Labels: map[string]string{
				"org.opencontainers.image.title":       a.title,
				"org.opencontainers.image.description": a.description,
				"org.opencontainers.image.source":      "https://github.com/toolmesh/toolmesh",
				"org.opencontainers.image.version":     b.version,
				"org.opencontainers.image.revision":    b.commit,
				"org.opencontainers.image.created":     b.epoch.Format("2006-01-02T15:04:05Z"),
			},
		},
	}
	made, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), config)
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if made, err = mutate.Append(made, mutate.Addendum{
			Layer: l.Layer, MediaType: types.OCILayer,
			History: v1.History{Created: v1.Time{Time: b.epoch}, CreatedBy: l.what},
		}); err != nil {
			return nil, err
		}
	}
	return &image{made, a.title}, nil
}

// write writes the image as an OCI layout, and the layout as a tar, and returns the size of the tar.
func (b *build) write(img *image) (size int64, err error) {
	folder := filepath.Join(b.out, img.name)
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(b.out, 0o755)); err != nil {
		return 0, err
	}
	to, err := layout.Write(folder, empty.Index)
	if err != nil {
		return 0, err
	}
	// skopeo and podman read the first name, ctr the second.
	if err := to.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: b.arch}), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": b.reference(img.name),
		"io.containerd.image.name":          b.reference(img.name),
	})); err != nil {
		return 0, err
	}
	if err := pack(folder, folder+".tar", false); err != nil {
		return 0, err
	}
	info, err := os.Stat(folder + ".tar")
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// fileLayer is a layer of a tar.
func fileLayer(file string) (v1.Layer, error) {
	return tarball.LayerFromFile(file, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

// folderLayer is a layer with the content of a folder.
func folderLayer(folder string) (v1.Layer, error) {
	if err := pack(folder, folder+".tar", true); err != nil {
		return nil, err
	}
	return fileLayer(folder + ".tar")
}

// pack writes the files of a folder into a tar that depends on nothing else: sorted, without
// times, and owned by root, but for the home of the images' user. folders says whether they are
// entries, too.
func pack(folder, file string, folders bool) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (!folders || name == folder) {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		from, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		inside := filepath.ToSlash(name[len(folder)+1:])
		h := &tar.Header{Name: inside, Mode: from.Mode, Size: from.Size, Typeflag: from.Typeflag, ModTime: time.Unix(0, 0)}
		if "/"+inside == home {
			h.Uid, h.Gid, h.Mode = userID, userID, 0o750
		}
		if d.IsDir() {
			h.Name += "/"
			return w.WriteHeader(h)
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		in, err := os.Open(name)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
	return errors.Join(err, w.Close())
}
