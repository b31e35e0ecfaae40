# A container runs a command and ends with its status.
# prints: Hello from a container of hello

job "hello" {
  type = "batch"

  group "hello" {
    task "hello" {
      driver = "docker"

      config {
        image   = "busybox:1"
        command = "echo"
        args    = ["Hello from a container of ${NOMAD_JOB_NAME}"]
      }
    }
  }
}
