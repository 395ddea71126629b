package testpg

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	officialImage = "postgres:17-alpine"
	builtImage    = "samekey-postgres:debian-3"
)

//go:embed image
var imageFiles embed.FS

// findImage returns an image that exists on this machine. It takes the first of: the image that the environment names,
// the official image, the image of an earlier build. If none exists, it pulls the official image or builds one.
func findImage(ctx context.Context) (string, error) {
	if asked := os.Getenv(Image); asked != "" {
		if haveImage(ctx, asked) {
			return asked, nil
		}
		if err := pullImage(ctx, asked); err != nil {
			return "", fmt.Errorf("%w: %s: %w", errAsked, Image, err)
		}
		return asked, nil
	}
	for _, image := range []string{officialImage, builtImage} {
		if haveImage(ctx, image) {
			return image, nil
		}
	}
	pullErr := pullImage(ctx, officialImage)
	if pullErr == nil {
		return officialImage, nil
	}
	say("%s cannot be pulled; building %s from Debian's packages: about two minutes, once", officialImage, builtImage)
	if err := buildImage(ctx); err != nil {
		return "", fmt.Errorf("%s can be neither pulled (%w) nor built (%w)", officialImage, pullErr, err)
	}
	return builtImage, nil
}

func haveImage(ctx context.Context, image string) bool {
	_, err := docker(ctx, "image", "inspect", image, "--format", "{{.Id}}")
	return err == nil
}

func pullImage(ctx context.Context, image string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	_, err := docker(ctx, "pull", "--quiet", image)
	return err
}

// buildImage runs image/build.sh. The script tags the image when the build is complete.
func buildImage(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "samekey-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, imageFiles); err != nil {
		return err
	}
	// Embedded files have no execute bit.
	command := exec.CommandContext(ctx, "sh", filepath.Join(dir, "image", "build.sh"), builtImage)
	output, err := command.CombinedOutput()
	if err != nil {
		tail := output[max(0, len(output)-1000):]
		return errors.Join(err, errors.New(string(tail)))
	}
	return nil
}
