job "job-parameterized" {
  type = "batch"
  parameterized {
    payload = "required"
    meta_required = ["a"]
    meta_optional = ["b", "c"]
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
