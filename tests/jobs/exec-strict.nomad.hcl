# At isolation strict a task's root is nobody on the host.
# prints: root inside, not 0 outside

job "strict" {
  type = "batch"

  group "strict" {
    task "strict" {
      driver = "exec"
      user   = "root"

      config {
        command   = "/bin/sh"
        args      = ["-c", "set -- $(cat /proc/self/uid_map); test $2 != 0 && echo $(id -un) inside, not 0 outside"]
        isolation = "strict"
      }
    }
  }
}
