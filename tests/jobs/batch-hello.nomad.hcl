# A batch job runs a program and ends with its status.
# prints: Hello from greeter on linux

job "hello" {
  type = "batch"

  group "greeter" {
    task "hello" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = ["Hello from ${NOMAD_GROUP_NAME} on ${attr.kernel.name}"]
      }
    }
  }
}
