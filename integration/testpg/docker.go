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
		stop() // a container that failed to start still exists
		return server{}, fmt.Errorf("run a container of %s: %w", image, err)
	}
	dsn, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		stop()
		return server{}, err
	}
	return server{dsn: dsn, what: "a container of " + image, stop: stop}, nil
}

// prepareTestcontainers sets the two settings that testcontainers cannot detect, unless the environment has them, and
// turns off its log. Call it before the process uses testcontainers.
func prepareTestcontainers(ctx context.Context) {
	log.SetDefault(log.NewNoopLogger())
	set := func(name, value string) {
		if _, there := os.LookupEnv(name); !there {
			_ = os.Setenv(name, value)
		}
	}
	// If the machine looks like a container, testcontainers connects to the gateway instead of 127.0.0.1. If this
	// machine has the daemon's bridge, the daemon runs here and 127.0.0.1 is right.
	if _, err := os.Stat("/.dockerenv"); err == nil {
		bridge, err := docker(ctx, "network", "inspect", "bridge", "--format", `{{index .Options "com.docker.network.bridge.name"}}`)
		if err == nil && bridge != "" {
			if _, err := net.InterfaceByName(bridge); err == nil {
				set("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
			}
		}
	}
	// Ryuk is a container that removes the containers of a killed process. Without it, the next run removes them: see
	// removeOrphans.
	//nolint:staticcheck // the image's name is available nowhere else
	ryuk := testcontainers.ReaperDefaultImage
	if !haveImage(ctx, ryuk) {
		if err := pullImage(ctx, ryuk); err != nil {
			set("TESTCONTAINERS_RYUK_DISABLED", "true")
		}
	}
}

// removeOrphans removes the containers of processes of this host that have ended.
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
			say("removed container %s of a killed run", id)
		}
	}
}

func ownerOf(pid int) string {
	host, _ := os.Hostname() // hosts without a name share the name ""
	return host + ":" + strconv.Itoa(pid)
}

func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// docker runs the docker command and returns its output.
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
