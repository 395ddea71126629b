package main

import "syscall"

// attributes puts a child into its own process group, and ends it when this process ends, also by a kill.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
