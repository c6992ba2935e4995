package k8s

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"
)

// ImageTag is the version that the manifests of k8s/ name.
const ImageTag = "0.1.0"

const pauseImage = "localhost/toolmesh/pause:test"

// NATSImage is the image in k8s/nats; here it has only the server of the same version.
const NATSImage = "docker.io/library/nats:2.15.2-alpine"

// BareImage is an agent without its requirements, as a user's own image may be.
const BareImage = "docker.io/toolmesh/mesh-agent:bare"

// prepare fills a run's folder: bin has the programs and mesh; images; manifests has all combinations of components,
// and the definitions of other projects' kinds.
func prepare(ctx context.Context, folder string) error {
	bin, images, manifests := filepath.Join(folder, "bin"), filepath.Join(folder, "images"), filepath.Join(folder, "manifests")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(images, 0o755), os.Mkdir(manifests, 0o755)); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	server := filepath.Join(bin, "nats-server")
	group.Go(func() error {
		cache, err := programs(ctx)
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(cache)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := os.Symlink(filepath.Join(cache, e.Name()), filepath.Join(bin, e.Name())); err != nil {
				return err
			}
		}
		return writeImage(filepath.Join(images, "pause.tar"), pauseImage, filepath.Join(bin, "pause"))
	})
	group.Go(func() error {
		if err := errors.Join(
			command(ctx, Root, "go", "build", "-buildvcs=false", "-ldflags", "-X main.version="+ImageTag, "-o", filepath.Join(bin, "mesh"), "./cmd/mesh"),
			command(ctx, Root, "env", "CGO_ENABLED=0", "go", "build", "-buildvcs=false", "-trimpath", "-o", server, "github.com/nats-io/nats-server/v2"),
			writeImage(filepath.Join(images, "nats.tar"), NATSImage, server),
			command(ctx, Root, "env", "CGO_ENABLED=0", "go", "build", "-buildvcs=false", "-trimpath", "-o", filepath.Join(bin, "mesh-agent"), "./cmd/mesh-agent"),
			writeImage(filepath.Join(images, "bare.tar"), BareImage, filepath.Join(bin, "mesh-agent"))); err != nil {
			return err
		}
		if kept := os.Getenv("E2E_K8S_IMAGES"); kept != "" {
			for _, of := range []string{"mesh-router.tar", "mesh-agent.tar"} {
				if err := os.Symlink(filepath.Join(kept, of), filepath.Join(images, of)); err != nil {
					return err
				}
			}
			return nil
		}
		// A user does the same by make images.
		return command(ctx, Root+"/k8s/images", "go", "run", ".", "-out", images, "-prefix", "docker.io/toolmesh", "-version", ImageTag, "router", "agent")
	})
	group.Go(func() error {
		if err := command(ctx, Root+"/k8s/check", "env", "K8S_COMBINATIONS="+manifests, "go", "test", "-count", "1", "-run", "TestCombinations", "."); err != nil {
			return err
		}
		return kinds(ctx, folder)
	})
	return group.Wait()
}

// kinds copies the definitions of KEDA's and the Prometheus operator's kinds from their
// modules.
func kinds(ctx context.Context, folder string) error {
	for module, file := range map[string]string{
		"github.com/kedacore/keda/v2@v2.21.0":                        "config/crd/bases/keda.sh_scaledobjects.yaml",
		"github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
	} {
		said, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
		if err != nil {
			return fmt.Errorf("download %s: %w: %s", module, err, said)
		}
		var at struct{ Dir string }
		if err := json.Unmarshal(said, &at); err != nil {
			return err
		}
		definition, err := os.ReadFile(filepath.Join(at.Dir, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, "kind-"+filepath.Base(file)), definition, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func command(ctx context.Context, folder string, args ...string) error {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "10"}, args...)...)
	cmd.Dir = folder
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, said)
	}
	return nil
}

// writeImage writes an image that is one program, as an archive that ctr reads.
func writeImage(file, reference, program string) error {
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.WriteHeader(&tar.Header{Name: "bin/" + filepath.Base(program), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Entrypoint = []string{"/bin/" + filepath.Base(program)}
	config.Config.Env = []string{"PATH=/bin"}
	config.Config.User = "65532:65532"
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}
