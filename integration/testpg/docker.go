package testpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

// owner labels a container with the host and the process that it belongs to.
const owner = "samekey.testpg.owner"

func startDocker(ctx context.Context) (server, error) {
	if _, err := docker(ctx, "info", "--format", "{{.ServerVersion}}"); err != nil {
		return server{}, err
	}
	image, err := findImage(ctx)
	if err != nil {
		return server{}, err
	}
	prepareTestcontainers(ctx)
	removeOrphans(ctx)

	const data = "/pgdata"
	command := []string{"postgres"}
	for name, value := range settings {
		command = append(command, "-c", name+"="+value)
	}
	container, err := postgres.Run(ctx, image,
		testcontainers.WithCmd(command...),
		testcontainers.WithEnv(map[string]string{"PGDATA": data, "POSTGRES_HOST_AUTH_METHOD": "password"}),
		testcontainers.WithTmpfs(map[string]string{data: "rw"}),
		testcontainers.WithLabels(map[string]string{owner: ownerOf(os.Getpid())}),
		postgres.BasicWaitStrategies(),
	)
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := testcontainers.TerminateContainer(container, testcontainers.StopContext(ctx), testcontainers.StopTimeout(0)); err != nil {
			say("remove the container: %v", err)
		}
	}
	if err != nil {
		stop() // a container that failed to start is there all the same
		return server{}, fmt.Errorf("run a container of %s: %w", image, err)
	}
	dsn, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		stop()
		return server{}, err
	}
	return server{dsn: dsn, what: "a container of " + image, stop: stop}, nil
}

// prepareTestcontainers sets, where the environment does not, the two settings
// that testcontainers cannot find out by itself, and keeps it from telling its
// life's story. It must come before its first use in the process.
func prepareTestcontainers(ctx context.Context) {
	log.SetDefault(log.NewNoopLogger())
	set := func(name, value string) {
		if _, there := os.LookupEnv(name); !there {
			_ = os.Setenv(name, value)
		}
	}
	// A machine that looks like a container is taken for one, and published
	// ports are looked for at its gateway. Where the daemon's bridge is ours, the
	// daemon is here.
	if _, err := os.Stat("/.dockerenv"); err == nil {
		bridge, err := docker(ctx, "network", "inspect", "bridge", "--format", `{{index .Options "com.docker.network.bridge.name"}}`)
		if err == nil && bridge != "" {
			if _, err := net.InterfaceByName(bridge); err == nil {
				set("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
			}
		}
	}
	// Ryuk removes what a killed process leaves behind. Without it, the next run
	// does: see removeOrphans.
	//nolint:staticcheck // the image's name is nowhere else to be had
	ryuk := testcontainers.ReaperDefaultImage
	if !haveImage(ctx, ryuk) {
		if err := pullImage(ctx, ryuk); err != nil {
			set("TESTCONTAINERS_RYUK_DISABLED", "true")
		}
	}
}

// removeOrphans removes containers whose process on this host is gone.
func removeOrphans(ctx context.Context) {
	listed, err := docker(ctx, "ps", "--all", "--filter", "label="+owner, "--format", `{{.ID}} {{.Label "`+owner+`"}}`)
	if err != nil {
		return
	}
	for line := range strings.Lines(listed) {
		id, label, _ := strings.Cut(strings.TrimSpace(line), " ")
		at := strings.LastIndexByte(label, ':')
		pid, err := strconv.Atoi(label[at+1:])
		if err != nil || label != ownerOf(pid) || alive(pid) {
			continue
		}
		if _, err := docker(ctx, "rm", "--force", "--volumes", id); err == nil {
			say("removed a container that a killed run had left: %s", id)
		}
	}
}

func ownerOf(pid int) string {
	host, _ := os.Hostname() // none: all hosts without a name are one
	return host + ":" + strconv.Itoa(pid)
}

func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// docker runs the docker command and returns what it printed.
func docker(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "docker", args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		if words := strings.TrimSpace(stderr.String()); words != "" {
			return "", errors.New(words)
		}
		return "", err
	}
	return strings.TrimSpace(stdout.String()), nil
}
