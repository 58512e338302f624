// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes soft RoCE register memory as the vendor's drivers do: while this is loaded, every MR's
 * memory comes from ib_umem_get_peer(), exported here, and never from the kernel's own
 * ib_umem_get(). Memory that can't be pinned is offered to ib_peer_umem_get(), which takes
 * mappings of /dev/mrscope_vendor: they stand for memory of a GPU, as there is nothing to pin.
 *
 * What is built here is given back by the kernel's own ib_umem_release(). Such MRs carry no data.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#define PEER_MEM_ALLOW 1

/* What a device had before, for MRs that are not ours. */
struct vendor_device {
	struct list_head entry;
	struct ib_device *ibdev;
	struct ib_device_ops own;
	unsigned int mrs;
	bool leaving;
};

struct vendor_mr {
	struct ib_mr ibmr;
	struct list_head entry;
	struct vendor_device *device;
	struct ib_umem *umem;
};

/* Like the vendor's: larger than what the caller had, and another object. */
struct vendor_peer_umem {
	struct ib_umem umem;
	u64 pages_of_peer[32];
};

static LIST_HEAD(vendor_devices);
static LIST_HEAD(vendor_mrs);
/* Guards both lists, and the counts and states of devices. */
static DEFINE_MUTEX(vendor_lock);

static int fail_after_pin;
module_param(fail_after_pin, int, 0644);
MODULE_PARM_DESC(fail_after_pin, "errno of registrations whose memory was pinned; 0: they succeed");

static const struct vm_operations_struct vendor_vm_ops;

struct ib_umem *ib_umem_get_peer(struct ib_device *device, unsigned long addr, size_t size,
				 int access, unsigned long peer_mem_flags);
struct ib_umem *ib_peer_umem_get(struct ib_umem *old_umem, int old_ret,
				 unsigned long peer_mem_flags);

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 15, 0)
static int vendor_alloc_table(struct ib_umem *umem, unsigned int pages)
{
	umem->sg_nents = pages;
	return sg_alloc_table(&umem->sg_head, pages, GFP_KERNEL);
}

#define vendor_first_page(umem) ((umem)->sg_head.sgl)
#else
static int vendor_alloc_table(struct ib_umem *umem, unsigned int pages)
{
	/* What the release frees by, and only appending would set. */
	umem->sgt_append.total_nents = pages;
	return sg_alloc_table(&umem->sgt_append.sgt, pages, GFP_KERNEL);
}

#define vendor_first_page(umem) ((umem)->sgt_append.sgt.sgl)
#endif

static bool vendor_is_gpu_memory(struct mm_struct *mm, unsigned long addr, size_t size)
{
	struct vm_area_struct *vma;
	bool is;

	mmap_read_lock(mm);
	vma = find_vma(mm, addr);
	is = vma && vma->vm_ops == &vendor_vm_ops && vma->vm_start <= addr &&
	     size <= vma->vm_end - addr;
	mmap_read_unlock(mm);
	return is;
}

/* Takes the old umem's memory descriptor and its charge over when it succeeds. */
noinline __noclone struct ib_umem *ib_peer_umem_get(struct ib_umem *old_umem, int old_ret,
						    unsigned long peer_mem_flags)
{
	struct vendor_peer_umem *peer;

	if (!(peer_mem_flags & PEER_MEM_ALLOW) ||
	    !vendor_is_gpu_memory(old_umem->owning_mm, old_umem->address, old_umem->length))
		return ERR_PTR(old_ret);
	peer = kzalloc(sizeof(*peer), GFP_KERNEL);
	if (!peer)
		return ERR_PTR(-ENOMEM);
	peer->umem.ibdev = old_umem->ibdev;
	peer->umem.owning_mm = old_umem->owning_mm;
	peer->umem.iova = old_umem->iova;
	peer->umem.length = old_umem->length;
	peer->umem.address = old_umem->address;
	peer->umem.writable = old_umem->writable;
	kfree(old_umem);
	return &peer->umem;
}
EXPORT_SYMBOL(ib_peer_umem_get);

static int vendor_pin_pages(struct ib_umem *umem, struct page **pages, unsigned int count)
{
	unsigned long start = umem->address & PAGE_MASK;
	unsigned int flags = FOLL_LONGTERM | FOLL_WRITE, pinned = 0;
	int ret;

	if (!umem->writable)
		flags |= FOLL_FORCE;
	while (pinned < count) {
		cond_resched();
		ret = pin_user_pages_fast(start + (unsigned long)pinned * PAGE_SIZE, count - pinned,
					  flags, pages + pinned);
		if (ret < 0) {
			unpin_user_pages(pages, pinned);
			return ret;
		}
		pinned += ret;
	}
	return 0;
}

static int vendor_pin(struct ib_umem *umem)
{
	unsigned int count = ib_umem_num_pages(umem), i;
	struct scatterlist *sg;
	struct page **pages;
	int ret;

	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	ret = vendor_pin_pages(umem, pages, count);
	if (ret)
		goto out;
	ret = vendor_alloc_table(umem, count);
	if (ret) {
		unpin_user_pages(pages, count);
		goto out;
	}
	for_each_sg(vendor_first_page(umem), sg, count, i) sg_set_page(sg, pages[i], PAGE_SIZE, 0);
out:
	kvfree(pages);
	return ret;
}

/* The same sum and the same exemption as the kernel's. */
static int vendor_charge(struct ib_umem *umem)
{
	s64 limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	s64 pages = ib_umem_num_pages(umem);
	s64 charged = atomic64_add_return(pages, &umem->owning_mm->pinned_vm);

	if (charged <= limit || capable(CAP_IPC_LOCK))
		return 0;
	atomic64_sub(pages, &umem->owning_mm->pinned_vm);
	return -ENOMEM;
}

noinline __noclone struct ib_umem *ib_umem_get_peer(struct ib_device *device, unsigned long addr,
						    size_t size, int access,
						    unsigned long peer_mem_flags)
{
	struct ib_umem *umem, *peer;
	int ret;

	if (!size || addr + size < addr || PAGE_ALIGN(addr + size) < addr + size)
		return ERR_PTR(-EINVAL);
	if (!can_do_mlock())
		return ERR_PTR(-EPERM);
	if (access & IB_ACCESS_ON_DEMAND)
		return ERR_PTR(-EOPNOTSUPP);
	umem = kzalloc(sizeof(*umem), GFP_KERNEL);
	if (!umem)
		return ERR_PTR(-ENOMEM);
	umem->ibdev = device;
	umem->length = size;
	umem->address = addr;
	umem->iova = addr;
	umem->writable = ib_access_writable(access);
	umem->owning_mm = current->mm;
	mmgrab(umem->owning_mm);

	ret = vendor_charge(umem);
	if (ret)
		goto out_free;
	ret = vendor_pin(umem);
	if (!ret)
		return umem;
	if (ret == -EFAULT && peer_mem_flags & PEER_MEM_ALLOW) {
		peer = ib_peer_umem_get(umem, ret, peer_mem_flags);
		if (!IS_ERR(peer))
			return peer;
		ret = PTR_ERR(peer);
	}
	atomic64_sub(ib_umem_num_pages(umem), &umem->owning_mm->pinned_vm);
out_free:
	mmdrop(umem->owning_mm);
	kfree(umem);
	return ERR_PTR(ret);
}
EXPORT_SYMBOL(ib_umem_get_peer);

static struct vendor_device *vendor_find_device(struct ib_device *ibdev)
{
	struct vendor_device *device;

	lockdep_assert_held(&vendor_lock);
	list_for_each_entry(device, &vendor_devices, entry)
	{
		if (device->ibdev == ibdev)
			return device;
	}
	return NULL;
}

static struct vendor_mr *vendor_find_mr(struct ib_mr *ibmr)
{
	struct vendor_mr *mr;

	lockdep_assert_held(&vendor_lock);
	list_for_each_entry(mr, &vendor_mrs, entry)
	{
		if (&mr->ibmr == ibmr)
			return mr;
	}
	return NULL;
}

/* A device that goes keeps our functions for MRs until the last of our MRs has gone by it. */
static void vendor_let_go(struct vendor_device *device)
{
	lockdep_assert_held(&vendor_lock);
	if (!device->leaving || device->mrs)
		return;
	device->ibdev->ops.rereg_user_mr = device->own.rereg_user_mr;
	device->ibdev->ops.dereg_mr = device->own.dereg_mr;
	list_del(&device->entry);
	kfree(device);
}

/* No MR of ours outlives the module: each holds it. */
static int vendor_adopt(struct vendor_mr *mr, struct ib_device *ibdev)
{
	struct vendor_device *device;
	int ret = -ENODEV;

	mutex_lock(&vendor_lock);
	device = vendor_find_device(ibdev);
	if (device && !device->leaving && try_module_get(THIS_MODULE)) {
		device->mrs++;
		mr->device = device;
		list_add(&mr->entry, &vendor_mrs);
		ret = 0;
	}
	mutex_unlock(&vendor_lock);
	return ret;
}

static struct ib_mr *vendor_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt_addr,
					int access,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
					struct ib_dmah *dmah,
#endif
					struct ib_udata *udata)
{
	struct vendor_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	int ret;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->ibmr.length = length;
	mr->ibmr.iova = virt_addr;
	mr->umem = ib_umem_get_peer(pd->device, start, length, access, PEER_MEM_ALLOW);
	if (IS_ERR(mr->umem)) {
		ret = PTR_ERR(mr->umem);
		goto out_free;
	}
	ret = -READ_ONCE(fail_after_pin);
	if (!ret)
		ret = vendor_adopt(mr, pd->device);
	if (!ret)
		return &mr->ibmr;
	ib_umem_release(mr->umem);
out_free:
	kfree(mr);
	return ERR_PTR(ret);
}

static int vendor_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	int (*own)(struct ib_mr * ibmr, struct ib_udata * udata) = NULL;
	struct vendor_device *device;
	struct vendor_mr *mr;

	mutex_lock(&vendor_lock);
	mr = vendor_find_mr(ibmr);
	device = mr ? mr->device : vendor_find_device(ibmr->device);
	if (mr)
		list_del(&mr->entry);
	else if (device)
		own = device->own.dereg_mr;
	mutex_unlock(&vendor_lock);
	if (!mr)
		return own ? own(ibmr, udata) : -ENODEV;

	ib_umem_release(mr->umem);
	kfree(mr);
	mutex_lock(&vendor_lock);
	device->mrs--;
	vendor_let_go(device);
	mutex_unlock(&vendor_lock);
	module_put(THIS_MODULE);
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 11, 0)
static struct ib_mr *vendor_reg_anew(struct ib_pd *pd, u64 start, u64 length, u64 virt_addr,
				     int access, struct ib_udata *udata)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
	return vendor_reg_user_mr(pd, start, length, virt_addr, access, NULL, udata);
#else
	return vendor_reg_user_mr(pd, start, length, virt_addr, access, udata);
#endif
}

/*
 * As the vendor's: other memory is pinned before the old is given back, and where the PD is another
 * too, it is a new MR, whose predecessor the core deregisters. Soft RoCE would take an MR of ours
 * for one of its own.
 */
static struct ib_mr *vendor_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start, u64 length,
					  u64 virt_addr, int access, struct ib_pd *pd,
					  struct ib_udata *udata)
{
	struct vendor_mr *mr;
	struct ib_umem *umem;

	mutex_lock(&vendor_lock);
	mr = vendor_find_mr(ibmr);
	mutex_unlock(&vendor_lock);
	if (!mr)
		return ERR_PTR(-EOPNOTSUPP);
	if (!(flags & IB_MR_REREG_TRANS))
		return NULL;
	if (!(flags & IB_MR_REREG_ACCESS))
		access = IB_ACCESS_LOCAL_WRITE;
	if (flags & IB_MR_REREG_PD)
		return vendor_reg_anew(pd, start, length, virt_addr, access, udata);
	umem = ib_umem_get_peer(pd->device, start, length, access, PEER_MEM_ALLOW);
	if (IS_ERR(umem))
		return ERR_CAST(umem);
	ib_umem_release(mr->umem);
	mr->umem = umem;
	ibmr->length = length;
	ibmr->iova = virt_addr;
	return NULL;
}

static void vendor_take_rereg(struct ib_device *ibdev)
{
	if (ibdev->ops.rereg_user_mr)
		ibdev->ops.rereg_user_mr = vendor_rereg_user_mr;
}
#else
static void vendor_take_rereg(struct ib_device *ibdev)
{
}
#endif

static struct ib_client vendor_client;

static int vendor_add_device(struct ib_device *ibdev)
{
	struct vendor_device *device;

	if (!ibdev->ops.reg_user_mr)
		return -EOPNOTSUPP;
	device = kzalloc(sizeof(*device), GFP_KERNEL);
	if (!device)
		return -ENOMEM;
	device->ibdev = ibdev;
	device->own = ibdev->ops;
	ib_set_client_data(ibdev, &vendor_client, device);
	mutex_lock(&vendor_lock);
	list_add(&device->entry, &vendor_devices);
	ibdev->ops.dereg_mr = vendor_dereg_mr;
	vendor_take_rereg(ibdev);
	ibdev->ops.reg_user_mr = vendor_reg_user_mr;
	mutex_unlock(&vendor_lock);
	return 0;
}

static void vendor_remove_device(struct ib_device *ibdev, void *client_data)
{
	struct vendor_device *device = client_data;

	mutex_lock(&vendor_lock);
	ibdev->ops.reg_user_mr = device->own.reg_user_mr;
	device->leaving = true;
	vendor_let_go(device);
	mutex_unlock(&vendor_lock);
}

static struct ib_client vendor_client = {
    .name = "mrscope_vendor",
    .add = vendor_add_device,
    .remove = vendor_remove_device,
    .no_kverbs_req = 1,
};

static int vendor_mmap(struct file *filp, struct vm_area_struct *vma)
{
	/* Without pages of the host, so that it can't be pinned. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	vma->vm_flags |= VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP;
#else
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
#endif
	vma->vm_ops = &vendor_vm_ops;
	return 0;
}

static const struct file_operations vendor_fops = {
    .owner = THIS_MODULE,
    .mmap = vendor_mmap,
};

static struct miscdevice vendor_misc = {
    .minor = MISC_DYNAMIC_MINOR,
    .name = "mrscope_vendor",
    .fops = &vendor_fops,
    .mode = 0666,
};

static int __init vendor_init(void)
{
	int ret = misc_register(&vendor_misc);

	if (ret)
		return ret;
	ret = ib_register_client(&vendor_client);
	if (ret)
		misc_deregister(&vendor_misc);
	return ret;
}

static void __exit vendor_exit(void)
{
	ib_unregister_client(&vendor_client);
	misc_deregister(&vendor_misc);
}

module_init(vendor_init);
module_exit(vendor_exit);
MODULE_DESCRIPTION("Registers memory as vendors' RDMA drivers do, for mrscope's tests");
MODULE_LICENSE("GPL");
